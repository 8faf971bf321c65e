/* Event sets, fed from <state>.events: lines "gpu type data gi ci", appended by tests. And GPM samples. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ENTER(device) do { ret_t rc_ = enter_device(__func__, device); if (rc_ != SUCCESS) return rc_; } while (0)

typedef struct { unsigned long long types[MAX_GPUS]; long offset; } *event_set;
typedef struct { dev_t_ device; unsigned long long type, data; unsigned gi, ci; } event_data;
typedef struct { unsigned gpu, instance; int filled; } *gpm_sample;
typedef struct { unsigned id; ret_t rc; double value; const char *names[3]; } gpm_metric;
typedef struct { unsigned version, count; gpm_sample first, second; gpm_metric metrics[]; } gpm_metrics;

ret_t nvmlEventSetCreate(event_set *out) {
    char path[1024];
    struct stat now;
    ret_t rc = enter(__func__);
    if (rc != SUCCESS) return rc;
    *out = calloc(1, sizeof **out);
    /* Only what happens from now on. */
    if (state_path(".events", path, sizeof path) && stat(path, &now) == 0) (*out)->offset = now.st_size;
    return SUCCESS;
}

ret_t nvmlEventSetFree(event_set set) {
    ret_t rc = enter(__func__);
    if (rc == SUCCESS) free(set);
    return rc;
}

ret_t nvmlDeviceGetSupportedEventTypes(dev_t_ device, unsigned long long *out) {
    ENTER(device);
    *out = 0x1F;
    return SUCCESS;
}

ret_t nvmlDeviceRegisterEvents(dev_t_ device, unsigned long long types, event_set set) {
    ENTER(device);
    set->types[device->gpu] |= types;
    return SUCCESS;
}

static int next_event(event_set set, event_data *out) {
    char path[1024], line[128];
    FILE *file = state_path(".events", path, sizeof path) ? fopen(path, "r") : NULL;
    int found = 0;
    if (!file) return 0;
    fseek(file, set->offset, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        unsigned gpu;
        int gi, ci;
        set->offset = ftell(file);
        if (sscanf(line, "%u %llu %llu %d %d", &gpu, &out->type, &out->data, &gi, &ci) != 5 || gpu >= MAX_GPUS) continue;
        found = (set->types[gpu] & out->type) != 0;
        out->device = device_of(gpu, WHOLE);
        out->gi = (unsigned)gi;
        out->ci = (unsigned)ci;
    }
    fclose(file);
    return found;
}

ret_t nvmlEventSetWait_v2(event_set set, event_data *out, unsigned timeout_ms) {
    ret_t rc = enter(__func__);
    if (rc != SUCCESS) return rc;
    for (unsigned waited_ms = 0;; waited_ms += 5) {
        if (next_event(set, out)) return SUCCESS;
        if (waited_ms >= timeout_ms) return TIMEOUT;
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
}

#ifndef OLD_DRIVER
ret_t nvmlGpmQueryDeviceSupport(dev_t_ device, unsigned *versioned) {
    long long supported = 0;
    ENTER(device);
    gpu_number(device->gpu, "gpm", &supported);
    versioned[1] = (unsigned)supported;
    return SUCCESS;
}

ret_t nvmlGpmSampleAlloc(gpm_sample *out) {
    ret_t rc = enter(__func__);
    if (rc == SUCCESS) *out = calloc(1, sizeof **out);
    return rc;
}

ret_t nvmlGpmSampleFree(gpm_sample sample) {
    ret_t rc = enter(__func__);
    if (rc == SUCCESS) free(sample);
    return rc;
}

static ret_t fill(gpm_sample sample, unsigned gpu, unsigned instance) {
    long long supported = 0;
    if (!gpu_number(gpu, "gpm", &supported) || !supported) return NOT_SUPPORTED;
    sample->gpu = gpu;
    sample->instance = instance;
    sample->filled = 1;
    return SUCCESS;
}

ret_t nvmlGpmSampleGet(dev_t_ device, gpm_sample sample) {
    ENTER(device);
    return fill(sample, device->gpu, WHOLE);
}

ret_t nvmlGpmMigSampleGet(dev_t_ device, unsigned gi, gpm_sample sample) {
    mig_record record;
    ENTER(device);
    return mig_record_of(device->gpu, gi, &record) ? fill(sample, device->gpu, gi) : NOT_FOUND;
}

ret_t nvmlGpmMetricsGet(gpm_metrics *wanted) {
    char key[64], text[64];
    ret_t rc = enter(__func__);
    if (rc != SUCCESS) return rc;
    if (!wanted->first || !wanted->second || !wanted->first->filled || !wanted->second->filled) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < wanted->count; i++) {
        gpm_metric *metric = &wanted->metrics[i];
        if (wanted->second->instance == WHOLE) snprintf(key, sizeof key, "gpm.%u", metric->id);
        else snprintf(key, sizeof key, "gi.%u.gpm.%u", wanted->second->instance, metric->id);
        int found = gpu_text(wanted->second->gpu, key, text, sizeof text);
        metric->rc = found ? SUCCESS : NOT_SUPPORTED;
        metric->value = found ? atof(text) : 0;
    }
    return SUCCESS;
}
#endif
