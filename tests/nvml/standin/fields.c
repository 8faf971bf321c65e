/* Values by the number of their field; those that have functions of their own show the same state. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>

#ifndef OLD_DRIVER
typedef struct {
    unsigned id, scope;
    long long at, latency_us;
    unsigned type;
    ret_t rc;
    union { double real; unsigned u; unsigned long long ull; } value;
} field_value;

enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 };

static int rows_of(unsigned gpu, unsigned which, long long *out) {
    char text[64];
    unsigned rows[4];
    if (!gpu_text(gpu, "remapped_rows", text, sizeof text)) return 0;
    if (sscanf(text, "%u %u %u %u", &rows[0], &rows[1], &rows[2], &rows[3]) != 4) return 0;
    *out = rows[which];
    return 1;
}

static int known_field(unsigned gpu, unsigned id, long long *out) {
    switch (id) {
    case 3: return gpu_number(gpu, "ecc.volatile.corrected", out);
    case 4: return gpu_number(gpu, "ecc.volatile.uncorrected", out);
    case 5: return gpu_number(gpu, "ecc.aggregate.corrected", out);
    case 6: return gpu_number(gpu, "ecc.aggregate.uncorrected", out);
    case 74: case 75: case 76: case 77: case 78: case 79: return violation_of(gpu, id - 74, out);
    case 83: return gpu_number(gpu, "energy_mj", out);
    case 94: return gpu_number(gpu, "pcie_replays", out);
    case 142: case 143: case 144: case 145: return rows_of(gpu, id - 142, out);
    default: return 0;
    }
}

static int field_of(unsigned gpu, unsigned id, unsigned scope, long long *out) {
    char key[64];
    snprintf(key, sizeof key, "field.%u.%u", id, scope);
    if (gpu_number(gpu, key, out)) return 1;
    snprintf(key, sizeof key, "field.%u", id);
    return gpu_number(gpu, key, out) || known_field(gpu, id, out);
}

ret_t nvmlDeviceGetFieldValues(dev_t_ device, int count, field_value *values) {
    long long value;
    ret_t rc = enter_device(__func__, device);
    if (rc != SUCCESS) return rc;
    for (int i = 0; i < count; i++) {
        int found = field_of(device->gpu, values[i].id, values[i].scope, &value);
        values[i].rc = found ? SUCCESS : NOT_SUPPORTED;
        values[i].value.ull = 0;
        /* As on real cards: some are small numbers, some large ones. */
        values[i].type = values[i].id == 82 || values[i].id == 230 ? UNSIGNED_INT : UNSIGNED_LONG_LONG;
        if (!found) continue;
        if (values[i].type == UNSIGNED_INT) values[i].value.u = (unsigned)value;
        else values[i].value.ull = (unsigned long long)value;
    }
    return SUCCESS;
}
#endif
