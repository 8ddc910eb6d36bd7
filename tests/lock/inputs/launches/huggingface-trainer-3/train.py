from transformers import TrainingArguments

args = TrainingArguments(
    output_dir="o",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    bf16=True,
    gradient_checkpointing=True,
    num_train_epochs=2,
)
