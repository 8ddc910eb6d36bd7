/* Call kernels that were compiled when the package was built.
 *
 * A kernel takes one block of 64-bit numbers and fills another: a scalar is one number; an array is its address, its
 * shape and its strides in bytes; a tuple is its items in turn. `Kernel` turns Python arguments into the first block
 * and the second into Python results. It returns NotImplemented, and calls nothing, where an argument has another type
 * than the kernel was built for.
 */
#define PY_SSIZE_T_CLEAN
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"

/* Memory of arrays that a kernel makes, in the layout that numba's machine code reads and counts references in. */
struct memory {
    size_t references;
    void (*free)(void *, size_t, void *);
    void *free_argument;
    void *data;
    size_t size;
    void *allocator;
};

__attribute__((visibility("hidden"))) void *NRT_MemInfo_alloc_aligned(size_t size, unsigned align) {
    size_t head = sizeof(struct memory);
    struct memory *memory = malloc(head + size + align);
    if (memory == NULL) return NULL;
    uintptr_t first = (uintptr_t)memory + head;
    uintptr_t over = align ? first % align : 0;
    memory->references = 1;
    memory->free = NULL;
    memory->free_argument = NULL;
    memory->data = (void *)(over ? first + align - over : first);
    memory->size = size;
    memory->allocator = NULL;
    return memory;
}

__attribute__((visibility("hidden"))) void *NRT_MemInfo_alloc_safe_aligned(size_t size, unsigned align) {
    return NRT_MemInfo_alloc_aligned(size, align);
}

__attribute__((visibility("hidden"))) void *NRT_MemInfo_alloc_safe_aligned_external(size_t size, unsigned align, void *allocator) {
    (void)allocator;
    return NRT_MemInfo_alloc_aligned(size, align);
}

__attribute__((visibility("hidden"))) void NRT_MemInfo_call_dtor(struct memory *memory) {
    free(memory);
}

/* numba's name of a function of C's. */
__attribute__((visibility("hidden"))) double numba_nextafter(double from, double to) { return nextafter(from, to); }

/* Strides of a contiguous array, or of one dimension, under another shape; 0 where the array is of another form. */
__attribute__((visibility("hidden"))) int numba_attempt_nocopy_reshape(
    npy_intp dimensions, const npy_intp *shape, const npy_intp *strides, npy_intp new_dimensions, const npy_intp *new_shape,
    npy_intp *new_strides, npy_intp size, int in_fortran_order) {
    if (dimensions == 1 && new_dimensions == 1) {
        new_strides[0] = strides[0];
        return 1;
    }
    npy_intp contiguous = size;
    for (npy_intp at = dimensions - 1; at >= 0; at--) {
        if (strides[at] != contiguous || in_fortran_order) return 0;
        contiguous *= shape[at];
    }
    contiguous = size;
    for (npy_intp at = new_dimensions - 1; at >= 0; at--) {
        new_strides[at] = contiguous;
        contiguous *= new_shape[at];
    }
    return 1;
}

/* ---- arguments ------------------------------------------------------------------------------------------------ */

enum { CONTIGUOUS = 1, WRITABLE = 2 };

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    entry_t *entry;
    PyObject *arguments; /* bytes: i int64, f float64, b bool, a array (dtype, dimensions, flags), ( tuple (items) */
    PyObject *results;   /* the same, n for None and t for a NamedTuple (items, class) */
    PyObject *dtypes;    /* tuple of numpy.dtype, which both name by number */
    PyObject *classes;   /* tuple of NamedTuple classes */
    Py_ssize_t given;
    Py_ssize_t slots_in;
    Py_ssize_t slots_out;
} Kernel;

static Py_ssize_t count_slots(const char **code) {
    switch (*(*code)++) {
    case 'n':
        return 0;
    case 'i':
    case 'f':
    case 'b':
        return 1;
    case 'a': {
        int dimensions = (unsigned char)(*code)[1];
        *code += 3;
        return 2 + 2 * dimensions;
    }
    case 't':
    case '(': {
        int items = (unsigned char)*(*code)++;
        if ((*code)[-2] == 't') (*code)++;
        Py_ssize_t sum = 0;
        while (items--) sum += count_slots(code);
        return sum;
    }
    }
    return 0;
}

/* Write one argument; 1 if it is of the type that the code says, 0 if it is of another. */
static int write_argument(Kernel *self, const char **code, PyObject *value, int64_t **slot) {
    switch (*(*code)++) {
    case 'i': {
        long long number;
        if (PyLong_CheckExact(value)) {
            number = PyLong_AsLongLong(value);
        } else if (PyArray_IsScalar(value, Integer)) {
            PyObject *plain = PyNumber_Index(value);
            if (plain == NULL) return 0;
            number = PyLong_AsLongLong(plain);
            Py_DECREF(plain);
        } else {
            return 0;
        }
        if (number == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
        *(*slot)++ = number;
        return 1;
    }
    case 'f': {
        if (!PyFloat_Check(value)) return 0;
        double number = PyFloat_AS_DOUBLE(value);
        memcpy((*slot)++, &number, sizeof number);
        return 1;
    }
    case 'b':
        if (PyBool_Check(value)) {
            *(*slot)++ = value == Py_True;
        } else if (PyArray_IsScalar(value, Bool)) {
            *(*slot)++ = PyArrayScalar_VAL(value, Bool) != 0;
        } else {
            return 0;
        }
        return 1;
    case 'a': {
        PyArray_Descr *dtype = (PyArray_Descr *)PyTuple_GET_ITEM(self->dtypes, (unsigned char)(*code)[0]);
        int dimensions = (unsigned char)(*code)[1], flags = (*code)[2];
        *code += 3;
        if (!PyArray_Check(value)) return 0;
        PyArrayObject *array = (PyArrayObject *)value;
        if (PyArray_DESCR(array) != dtype && !PyArray_EquivTypes(PyArray_DESCR(array), dtype)) return 0;
        if (PyArray_NDIM(array) != dimensions) return 0;
        if ((flags & CONTIGUOUS) && !PyArray_IS_C_CONTIGUOUS(array)) return 0;
        if ((flags & WRITABLE) && !PyArray_ISWRITEABLE(array)) return 0;
        if (!PyDataType_HASFIELDS(dtype) && !PyArray_ISALIGNED(array)) return 0;
        *(*slot)++ = (int64_t)(intptr_t)PyArray_DATA(array);
        *(*slot)++ = 0;
        for (int at = 0; at < dimensions; at++) *(*slot)++ = PyArray_DIM(array, at);
        for (int at = 0; at < dimensions; at++) *(*slot)++ = PyArray_STRIDE(array, at);
        return 1;
    }
    case '(': {
        Py_ssize_t items = (unsigned char)*(*code)++;
        if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != items) return 0;
        for (Py_ssize_t at = 0; at < items; at++)
            if (!write_argument(self, code, PyTuple_GET_ITEM(value, at), slot)) return 0;
        return 1;
    }
    }
    return 0;
}

/* ---- results -------------------------------------------------------------------------------------------------- */

static PyObject *read_result(Kernel *self, const char **code, int64_t **slot) {
    switch (*(*code)++) {
    case 'n':
        Py_RETURN_NONE;
    case 'i':
        return PyLong_FromLongLong(*(*slot)++);
    case 'f': {
        double number;
        memcpy(&number, (*slot)++, sizeof number);
        return PyFloat_FromDouble(number);
    }
    case 'b':
        return PyBool_FromLong(*(*slot)++ != 0);
    case 'a': {
        PyArray_Descr *dtype = (PyArray_Descr *)PyTuple_GET_ITEM(self->dtypes, (unsigned char)(*code)[0]);
        int dimensions = (unsigned char)(*code)[1];
        *code += 3;
        void *data = (void *)(intptr_t)(*slot)[0];
        struct memory *memory = (struct memory *)(intptr_t)(*slot)[1];
        npy_intp shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
        for (int at = 0; at < dimensions; at++) {
            shape[at] = (npy_intp)(*slot)[2 + at];
            strides[at] = (npy_intp)(*slot)[2 + dimensions + at];
        }
        *slot += 2 + 2 * dimensions;
        Py_INCREF(dtype);
        PyObject *seen = PyArray_NewFromDescr(&PyArray_Type, dtype, dimensions, shape, strides, data, NPY_ARRAY_WRITEABLE, NULL);
        PyObject *copy = seen == NULL ? NULL : PyArray_NewCopy((PyArrayObject *)seen, NPY_CORDER);
        Py_XDECREF(seen);
        if (memory != NULL && __atomic_sub_fetch(&memory->references, 1, __ATOMIC_ACQ_REL) == 0) NRT_MemInfo_call_dtor(memory);
        return copy;
    }
    case 't':
    case '(': {
        int named = (*code)[-1] == 't';
        Py_ssize_t items = (unsigned char)*(*code)++;
        PyObject *type = named ? PyTuple_GET_ITEM(self->classes, (unsigned char)*(*code)++) : NULL;
        PyObject *result = PyTuple_New(items);
        for (Py_ssize_t at = 0; at < items; at++) {
            /* All are read, also behind one that failed: each frees its memory. */
            PyObject *item = read_result(self, code, slot);
            if (result == NULL || item == NULL) {
                Py_XDECREF(item);
                Py_CLEAR(result);
                continue;
            }
            PyTuple_SET_ITEM(result, at, item);
        }
        if (result != NULL && named) {
            PyObject *made = PyObject_CallObject(type, result);
            Py_DECREF(result);
            return made;
        }
        return result;
    }
    }
    PyErr_SetString(PyExc_SystemError, "a kernel's result has no known type");
    return NULL;
}

static PyObject *kernel_call(PyObject *callable, PyObject *const *values, size_t given, PyObject *names) {
    Kernel *self = (Kernel *)callable;
    if ((names != NULL && PyTuple_GET_SIZE(names) > 0) || PyVectorcall_NARGS(given) != self->given) Py_RETURN_NOTIMPLEMENTED;
    int64_t in[self->slots_in + 1], out[self->slots_out + 1];
    int64_t *slot = in;
    const char *code = PyBytes_AS_STRING(self->arguments);
    for (Py_ssize_t at = 0; at < self->given; at++)
        if (!write_argument(self, &code, values[at], &slot)) Py_RETURN_NOTIMPLEMENTED;
    int32_t failed;
    Py_BEGIN_ALLOW_THREADS
    failed = self->entry(in, out);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_NoMemory(); /* kernels raise nothing of their own */
    slot = out;
    code = PyBytes_AS_STRING(self->results);
    return read_result(self, &code, &slot);
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    long long number;
    PyObject *arguments, *results, *dtypes, *classes;
    Py_ssize_t given;
    (void)named;
    if (!PyArg_ParseTuple(args, "LnSSO!O!", &number, &given, &arguments, &results, &PyTuple_Type, &dtypes, &PyTuple_Type, &classes)) return NULL;
    if (number < 0 || number >= built_table.count) {
        PyErr_SetString(PyExc_IndexError, "no such kernel");
        return NULL;
    }
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(dtypes); at++)
        if (!PyArray_DescrCheck(PyTuple_GET_ITEM(dtypes, at))) {
            PyErr_SetString(PyExc_TypeError, "dtypes are numpy.dtype");
            return NULL;
        }
    Kernel *self = (Kernel *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->call = kernel_call;
    self->entry = built_table.entries[number];
    self->given = given;
    self->arguments = Py_NewRef(arguments);
    self->results = Py_NewRef(results);
    self->dtypes = Py_NewRef(dtypes);
    self->classes = Py_NewRef(classes);
    const char *code = PyBytes_AS_STRING(arguments);
    self->slots_in = 0;
    for (Py_ssize_t at = 0; at < given; at++) self->slots_in += count_slots(&code);
    code = PyBytes_AS_STRING(results);
    self->slots_out = count_slots(&code);
    return (PyObject *)self;
}

static void kernel_dealloc(PyObject *object) {
    Kernel *self = (Kernel *)object;
    Py_XDECREF(self->arguments);
    Py_XDECREF(self->results);
    Py_XDECREF(self->dtypes);
    Py_XDECREF(self->classes);
    Py_TYPE(object)->tp_free(object);
}

static PyTypeObject KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "shardwright._kernels.Kernel",
    .tp_doc = "A kernel, built for one list of argument types; NotImplemented for arguments of others.",
    .tp_basicsize = sizeof(Kernel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Kernel, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = kernel_new,
    .tp_dealloc = kernel_dealloc,
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "shardwright._kernels", .m_doc = "Kernels, compiled when the package was built.", .m_size = -1};

PyMODINIT_FUNC PyInit__kernels(void) {
    import_array();
    if (PyType_Ready(&KernelType) < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made == NULL) return NULL;
    PyObject *table = PyBytes_FromStringAndSize((const char *)built_table.text, (Py_ssize_t)built_table.length);
    if (table == NULL || PyModule_AddObject(made, "table", table) < 0) return NULL;
    if (PyModule_AddObjectRef(made, "Kernel", (PyObject *)&KernelType) < 0) return NULL;
    return made;
}
