/* Who computes on a GPU. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>
#include <string.h>

#define MIB (1024ull * 1024)
#define ENTER(device) do { ret_t rc_ = enter_device(__func__, device); if (rc_ != SUCCESS) return rc_; } while (0)

typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } process_info;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; } process_sample;

/* Processes read "pid:memory_mib:sm_percent:gi:ci", separated by commas; gi and ci are -1 for the whole GPU. */
static unsigned processes_of(dev_t_ device, const char *key, process_info *out, unsigned *sm, unsigned room) {
    char text[VALUE_SIZE], *rest = NULL;
    unsigned count = 0;
    if (!gpu_text(device->gpu, key, text, sizeof text)) return 0;
    for (char *item = strtok_r(text, ",", &rest); item && count < room; item = strtok_r(NULL, ",", &rest)) {
        unsigned pid, memory_mib, percent;
        int gi, ci;
        if (sscanf(item, "%u:%u:%u:%d:%d", &pid, &memory_mib, &percent, &gi, &ci) != 5) continue;
        if (device->instance != WHOLE && (unsigned)gi != device->instance) continue;
        out[count] = (process_info){pid, memory_mib * MIB, (unsigned)gi, (unsigned)ci};
        sm[count++] = percent;
    }
    return count;
}

ret_t nvmlDeviceGetProcessUtilization(dev_t_ device, process_sample *out, unsigned *count, unsigned long long since) {
    process_info found[128];
    unsigned sm[128];
    (void)since;
    ENTER(device);
    unsigned there = processes_of(device, "processes", found, sm, 128);
    there += processes_of(device, "mps_processes", found + there, sm + there, 128 - there);
    if (!there) return NOT_FOUND;
    if (!out || *count < there) {
        *count = there;
        return INSUFFICIENT_SIZE;
    }
    for (unsigned i = 0; i < there; i++) out[i] = (process_sample){found[i].pid, 1, sm[i], 0, 0, 0};
    *count = there;
    return SUCCESS;
}

#ifndef OLD_DRIVER
static ret_t list(dev_t_ device, const char *key, unsigned *count, process_info *out) {
    process_info found[128];
    unsigned sm[128];
    unsigned there = processes_of(device, key, found, sm, 128), room = *count;
    *count = there;
    if (there > room || (there && !out)) return INSUFFICIENT_SIZE;
    memcpy(out ? out : found, found, there * sizeof *found);
    return SUCCESS;
}

ret_t nvmlDeviceGetComputeRunningProcesses_v3(dev_t_ device, unsigned *count, process_info *out) {
    ENTER(device);
    return list(device, "processes", count, out);
}

/* The clients of an MPS server, which is itself among the processes. */
ret_t nvmlDeviceGetMPSComputeRunningProcesses_v3(dev_t_ device, unsigned *count, process_info *out) {
    ENTER(device);
    return list(device, "mps_processes", count, out);
}
#endif
