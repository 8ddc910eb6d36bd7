/* The entry points of all kernels, and the table that says how each is called (built_kernels.py). */
#include <stddef.h>
#include <stdint.h>

typedef int32_t entry_t(const int64_t *arguments, int64_t *results);

struct built_table {
    const unsigned char *text; /* marshalled by Python: name -> (digest, variants) */
    size_t length;
    entry_t *const *entries;
    int64_t count;
};

extern const struct built_table built_table;
