"""Description of a training framework's version: switches, enumerations and sizes with sources.

The planner's cost model reads these fields. None of the numbers is fitted.
"""

from __future__ import annotations

from typing import TypeAlias

from shardwright.dtype import Dtype
from shardwright.lazily_compiled_dataclass import dataclass
from shardwright.runtime.kernel_overlap_recompute_scaling_kinds import (
    AttentionKernel,
    Capture,
    ElementKernels,
    ExpertDispatch,
    FullRecompute,
    KeptOutput,
    LinearLoss,
    ScaleGroup,
    Scaling,
    SelectiveRecompute,
    TpOverlap,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Source of one field's value.

    Args:
        field: name of the field.
        link: file of the framework's code or page of its documentation.
        checked: the linked text was read (at that commit, where the link has one); False = from
            memory, and the link is the place to check.
        note: statement of the source, where the value alone would puzzle.
    """

    field: str
    link: str
    checked: bool = False
    note: str = ""


Options: TypeAlias = tuple[tuple[str, str], ...]
"""(option, value) pairs in the order of the vocabulary (`option_vocabulary.OPTIONS`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A value of an option that a framework can run, with its launch flag and changed fields.

    Args:
        option, value: words of the vocabulary (`option_vocabulary.OPTIONS`).
        flag: the flag of a launch script that sets it; empty = the flag's absence.
        values: fields of `Runtime` that it changes.
        facts: sources of these values.
        needs: (option, values) of other options without which it does not run.
    """

    option: str
    value: str
    flag: str
    values: tuple[tuple[str, object], ...]
    facts: tuple[Fact, ...]
    needs: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Facts of a training framework's version that the cost model and searches read.

    Args:
        name: catalog name, ``megatron-core-0.12``. framework, version, released (ISO month).
        vendors: vendors whose accelerators the framework, or a port of it, runs on.
        gradient_dtype: dtype in which gradients accumulate;
        main_grad_copy: that copy is kept beside the parameter's own gradient.
        zero_stages: ZeRO stages that the framework can run;
        zero_with_pipeline: the highest ZeRO stage with pp > 1.
        hybrid_sharding: shard groups may be smaller than dp.
        optimizer_offload: optimizer states can be kept in host memory.
        schedules: names of the pipeline schedules that the framework can run.
        sequence_parallel, context_ring, context_gather, context_ulysses, expert_parallel: kinds of
            parallelism that the framework has.
        overlap_grad_reduce, overlap_param_gather, overlap_p2p: the communication runs on a CUDA
            stream of its own, beside compute.
        plain_p2p_blocks: nevertheless a rank of one chunk computes nothing while it sends or
            receives (`blocks_sends`).
        bucket_bytes: bytes of a gradient bucket; 0 = one bucket for each layer.
        gather_prefetch: number of layers whose ZeRO-3 parameters are gathered ahead.
        gather_bucket_bytes: ZeRO-3 gathers whole matrices, joined up to this many bytes; 0 = one
            layer, or one gradient bucket.
        listed_collectives: ZeRO-3 gathers and reduces each matrix alone, as a list of one tensor
            for each rank (see `cost.gradients.plan_synchronisation`).
        sums_replicas_apart: the all-reduce over replicas of hybrid sharding has its own
            communicator and stream.
        reuse_elements: parameters that are used again within this many elements stay gathered, all
            others are gathered again; 0 = all stay.
        reduce_every_microbatch: ZeRO-2/3 reduces gradients each microbatch.
        tp_overlap: see `TpOverlap`.
        element_kernels, attention_kernel, full_recompute: see `ElementKernels`, `AttentionKernel`
            and `FullRecompute`.
        tp_synchronises: the host waits until the device is idle before and after each
            tensor-parallel collective.
        launches_block: the host waits for each kernel before it launches the next, so that nothing
            overlaps.
        tp_input_regather: column-parallel inputs are saved sharded and gathered again for the
            weight gradient.
        p2p_scatter_gather: at a pipeline border each tp rank sends its own 1/tp, and the receivers
            gather (False: full copies, each by its own NIC).
        fused_weight_gradient: weight gradients accumulate into fp32 in the GEMM's epilogue.
        fused_loss: cross-entropy reads and writes logits without fp32 copies.
        logits_bytes: bytes an element of logits and their copies at the peak of the loss.
        logits_blocks_bytes: bytes an element of all blocks that the allocator makes for the logits:
            a block made for an earlier, smaller copy serves no later, larger one. 0 = logits_bytes.
        logits_parts: parts of a microbatch's tokens whose logits are computed, and recomputed in
            backward, one after another; 0 = all at once.
        linear_loss: see `LinearLoss`; it overrides logits_bytes, loss_bytes and logits_parts.
        split_logits_bytes: additional bytes an element where the vocabulary is split over devices.
        embedding_gradient_bytes: bytes an element of the temporary for the embedding's or head's
            weight gradient.
        workspace_bytes: workspaces of the GEMM library, allocated with everything else.
        allocator_reserve_percent: least share that the caching allocator holds beyond the allocated
            memory.
        default_recompute: recompute of this release where no option sets it.
        activation_offload: all saved activations of some layers can be kept in host memory, without
            a pipeline and without recompute.
        selective_recompute: see `SelectiveRecompute`.
        kept_outputs: tensors that a layer saves where selective_recompute is NAMED (the layer's
            input always is saved);
        host_outputs: those of kept_outputs and the input that are kept in host memory until
            backward.
        gathers_from_master: ZeRO-3 shards are the fp32 master copies, cast when gathered: there is
            no working copy beside them.
        zero1_broadcasts: ZeRO-1 returns parameters by one broadcast for each rank, in series,
            instead of an all_gather.
        expert_dispatch: see `ExpertDispatch`.
        hybrid_dispatch: DEDUPLICATED always is HybridEP, also where DeepEP would suffice.
        dispatches_eight_bit: if the job computes in 8 or 4 bits, tokens sent to experts and
            gradients of the experts' outputs have 8 bits, with a scale for each 128 elements; sums
            keep 16 bits.
        saves_quantized: linear operators save their input for the weight gradient in the GEMM's
            dtype, not in the activations' dtype.
        reserved_multiprocessors: multiprocessors that GEMMs and attention of an overlapped pair
            leave to its communication for as long as they run; 0 = none: communication takes its
            share from the kernels beside it.
        saves_gates_eight_bit: inputs of a feed-forward's activation function are saved for backward
            in 8 bits, in any GEMM dtype.
        moments: dtype of the optimizer's states where it is not the job's; None = the job's.
        capture: see `Capture`.
        routing_on_host: the host reads the number of tokens of each expert before it launches the
            experts, where that number varies (`reads_routing`).
        expert_overlap: token dispatch and combine overlap the kernels of another microbatch.
        fused_experts: one grouped GEMM for all local experts instead of one GEMM, and quantisation
            of its operands, for each.
        attention_eight_bit: fused attention multiplies in 8 bits if the job computes in 8 or 4
            bits.
        rebuilds_latent: up projections of latent attention and their rotary embedding are
            recomputed in backward and not saved.
        rebuilds_norms, rebuilds_expert_activation, rebuilds_mlp, rebuilds_shared_experts,
            rebuilds_experts: norms of the residual stream, the experts' activation function, a
            dense feed-forward, that of shared experts, routed experts with their dispatch are
            recomputed in backward, each under its own checkpoint, in layers that are not recomputed
            whole.
        fused_chains: norms, rotary embeddings and gated activations are one kernel each although
            element-wise kernels are eager.
        fp32_norms: the input of a norm is cast to fp32 by its own kernel, and its gradient back.
        adds_gradients: a separate kernel adds each microbatch's weight gradients to the accumulated
            ones.
        loss_bytes: bytes a logit that cross-entropy reads and writes, forward and backward, counted
            in its code; 0 = not counted: 24, or 12 with `fused_loss`, times the passes of its
            element-wise kernels.
        scaling: see `Scaling`.
        scales_reduced: see `ScaleGroup`.
        gathers_quantized: inputs of 8- and 4-bit GEMMs are quantised before tensor parallelism
            gathers them.
        gathers_narrow: parameters of 8-bit GEMMs are stored and gathered in 8 bits.
        collective_library: library whose algorithms run
            (`collectives.algorithm_registry.LIBRARIES`).
        gradient_wire: dtype of gradients on the network where it differs from the dtype in which
            they accumulate; None = the same.
        gather_copy_bytes, reduce_copy_bytes: traffic of the copies around a sharded layer's
            all_gather and reduce_scatter, bytes an element.
        row_kernels: token permutation and fused cross-entropy are Transformer Engine's Triton
            kernels, one program a row.
        gradient_passes: passes a step over all local gradients, before their collective and to zero
            them, without their scaling.
        scales_gradients: gradients are multiplied by 1 / holders in their buffer before the
            collective sums them.
        checkpoints_on_host: the inputs of layers under full recompute are kept in host memory, each
            tensor-parallel rank with its own part.
        parameters_on_host: ZeRO-3's shards of the working copy are kept in host memory, and are
            copied to the device for each gather.
        host_gradient_bytes: bytes of the gradient's copy in host memory for each element whose
            optimizer states are there.
        gradients_on_host: from ZeRO-2 on, gradients of elements with states in host memory are
            there alone: each microbatch's gradients are copied there as they are reduced, and
            earlier ones are copied back to be added.
        host_buffer_percent: buffers that the framework's documentation counts in host memory, in
            percent of the model states there.
        experts_split_as_layers: where no option sets etp, experts are split over tp as dense layers
            are (etp = tp).
        router_kernels: kernels of a forward pass of the router and of the preparation of the
            dispatch, where each copy is sent; 0 = not counted.
        fills_pipeline: 1F1B by name is refused with fewer microbatches than stages, unless there is
            only one microbatch.
        ties_experts: experts are always split over tp as layers are (etp = tp).
        equal_stages: all stages have as many layers;
        equal_between: all but the first and the last stage have.
        fixed_capacity: experts take a fixed number of tokens, which the host need not read.
        facts: a source link for every field.
        offers: option values that the framework has.
        own: (option, default value) of each option of the framework.
        options: (option, value) of the options that are set to another value.
        base: the runtime's name without options.
    """

    name: str
    framework: str
    version: str
    released: str
    vendors: tuple[str, ...]
    gradient_dtype: Dtype
    main_grad_copy: bool
    zero_stages: tuple[int, ...]
    zero_with_pipeline: int
    hybrid_sharding: bool
    optimizer_offload: bool
    schedules: tuple[str, ...]
    sequence_parallel: bool
    context_ring: bool
    context_gather: bool
    context_ulysses: bool
    expert_parallel: bool
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    overlap_p2p: bool
    bucket_bytes: int
    gather_prefetch: int
    reduce_every_microbatch: bool
    tp_overlap: TpOverlap
    element_kernels: ElementKernels
    attention_kernel: AttentionKernel
    full_recompute: FullRecompute
    tp_input_regather: bool
    p2p_scatter_gather: bool
    fused_weight_gradient: bool
    fused_loss: bool
    logits_bytes: int
    embedding_gradient_bytes: int
    workspace_bytes: int
    allocator_reserve_percent: int
    default_recompute: str
    activation_offload: bool = False
    tp_synchronises: bool = False
    launches_block: bool = False
    selective_recompute: SelectiveRecompute = SelectiveRecompute.CORE
    kept_outputs: tuple[KeptOutput, ...] = ()
    host_outputs: tuple[KeptOutput, ...] = ()
    gathers_from_master: bool = False
    zero1_broadcasts: bool = False
    expert_dispatch: ExpertDispatch = ExpertDispatch.ALL_TO_ALL
    dispatches_eight_bit: bool = False
    reserved_multiprocessors: int = 0
    saves_quantized: bool = False
    saves_gates_eight_bit: bool = False
    moments: Dtype | None = None
    capture: Capture = Capture.NONE
    routing_on_host: bool = False
    expert_overlap: bool = False
    fused_experts: bool = False
    attention_eight_bit: bool = False
    rebuilds_latent: bool = False
    logits_blocks_bytes: int = 0
    split_logits_bytes: int = 0
    logits_parts: int = 0
    linear_loss: LinearLoss = LinearLoss.NONE
    adds_gradients: bool = False
    rebuilds_norms: bool = False
    rebuilds_expert_activation: bool = False
    rebuilds_mlp: bool = False
    rebuilds_shared_experts: bool = False
    rebuilds_experts: bool = False
    fused_chains: bool = False
    fp32_norms: bool = False
    loss_bytes: int = 0
    scaling: Scaling = Scaling.CURRENT
    scales_reduced: ScaleGroup = ScaleGroup.NONE
    gathers_quantized: bool = False
    gathers_narrow: bool = False
    collective_library: str = "nccl"
    gradient_wire: Dtype | None = None
    gather_bucket_bytes: int = 0
    listed_collectives: bool = False
    sums_replicas_apart: bool = False
    reuse_elements: int = 0
    gather_copy_bytes: int = 0
    reduce_copy_bytes: int = 0
    row_kernels: bool = False
    gradient_passes: int = 0
    scales_gradients: bool = False
    fixed_capacity: bool = False
    router_kernels: int = 0
    experts_split_as_layers: bool = False
    plain_p2p_blocks: bool = False
    hybrid_dispatch: bool = False
    checkpoints_on_host: bool = False
    parameters_on_host: bool = False
    fills_pipeline: bool = False
    ties_experts: bool = False
    equal_stages: bool = False
    equal_between: bool = False
    host_gradient_bytes: int = 0
    host_buffer_percent: int = 0
    gradients_on_host: bool = False
    facts: tuple[Fact, ...] = ()
    offers: tuple[Offer, ...] = ()
    own: Options = ()
    options: Options = ()
    base: str = ""
    aliases: tuple[str, ...] = ()

    @property
    def reads_routing(self) -> bool:
        """True if the host waits for the device to report the number of tokens of each expert.

        The host does not wait where that number is fixed, nor where a graph holds the iteration.
        """
        return (
            self.routing_on_host
            and not self.fixed_capacity
            and self.capture is not Capture.ITERATION
        )

    def blocks_sends(self, chunks: int) -> bool:
        """True if a pipeline rank waits for each send: P2P overlap off, or absent at one chunk."""
        return not self.overlap_p2p or (self.plain_p2p_blocks and chunks == 1)

    def __hash__(self) -> int:
        # Cheap and lawful: equal runtimes have equal names.
        return hash((self.name, self.version))
