/* Compute instances, of which a GPU instance has one that fills it or none; and a GPU's compute mode. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>

#define ENTER(device) do { ret_t rc_ = enter_device(__func__, device); if (rc_ != SUCCESS) return rc_; } while (0)
#define ENTER_INSTANCE(instance) do { ret_t rc_ = enter_gpu(__func__, (instance)->gpu); if (rc_ != SUCCESS) return rc_; } while (0)

typedef struct { dev_t_ device; instance_t instance; unsigned id, profile; placement where; } compute_info;
typedef struct { unsigned id, slices, count, sms, copy, decoder, encoder, jpeg, ofa; } compute_profile_info;
typedef struct {
    unsigned version, id, slices, count, sms, copy, decoder, encoder, jpeg, ofa;
    char name[96];
} compute_profile_info_v2;

static struct { unsigned gpu, id; } computes[MAX_GPUS][MAX_INSTANCES];
static const unsigned slices_of[] = {1, 2, 3, 4, 7, 8, 6}; /* by the profile's number */

static instance_t handle_of(unsigned gpu, unsigned id) {
    computes[gpu][id].gpu = gpu;
    computes[gpu][id].id = id;
    return (instance_t)&computes[gpu][id];
}

/* The one compute profile that the instance takes: that of its whole size. */
static int fits(instance_t instance, unsigned number, mig_profile *p) {
    mig_record r;
    return mig_record_of(instance->gpu, instance->id, &r) && mig_profile_by_id(r.gpu, r.profile, p) &&
           number < sizeof slices_of / sizeof *slices_of && slices_of[number] == p->slices;
}

static int has_compute(instance_t instance) {
    mig_record r;
    return mig_record_of(instance->gpu, instance->id, &r) && r.compute;
}

ret_t nvmlGpuInstanceGetComputeInstanceProfileInfo(instance_t instance, unsigned number, unsigned engine, compute_profile_info *out) {
    mig_profile p;
    ENTER_INSTANCE(instance);
    if (engine || !fits(instance, number, &p)) return NOT_SUPPORTED;
    *out = (compute_profile_info){number, p.slices, 1, p.sms, 1, 0, 0, 0, 0};
    return SUCCESS;
}

#ifndef OLD_DRIVER
ret_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance_t instance, unsigned number, unsigned engine, compute_profile_info_v2 *out) {
    mig_profile p;
    ENTER_INSTANCE(instance);
    if (out->version != 0x02000088) return VERSION_MISMATCH;
    if (engine || !fits(instance, number, &p)) return NOT_SUPPORTED;
    *out = (compute_profile_info_v2){out->version, number, p.slices, 1, p.sms, 1, 0, 0, 0, 0, ""};
    snprintf(out->name, sizeof out->name, "%s", p.name);
    return SUCCESS;
}
#endif

ret_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance_t instance, unsigned number, unsigned *out) {
    mig_profile p;
    ENTER_INSTANCE(instance);
    if (!fits(instance, number, &p)) return NOT_SUPPORTED;
    *out = !has_compute(instance);
    return SUCCESS;
}

ret_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(instance_t instance, unsigned number, placement *out, unsigned *count) {
    mig_profile p;
    ENTER_INSTANCE(instance);
    if (!fits(instance, number, &p)) return NOT_SUPPORTED;
    if (out) out[0] = (placement){0, p.slices};
    *count = 1;
    return SUCCESS;
}

static ret_t create(instance_t instance, unsigned number, instance_t *out) {
    mig_profile p;
    if (!fits(instance, number, &p)) return NOT_SUPPORTED;
    ret_t rc = mig_change(instance->gpu, instance->id, 1);
    if (rc == SUCCESS) *out = handle_of(instance->gpu, instance->id);
    return rc;
}

ret_t nvmlGpuInstanceCreateComputeInstance(instance_t instance, unsigned number, instance_t *out) {
    ENTER_INSTANCE(instance);
    return create(instance, number, out);
}

ret_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance_t instance, unsigned number, const placement *where, instance_t *out) {
    ENTER_INSTANCE(instance);
    return where->start == 0 ? create(instance, number, out) : INVALID_ARGUMENT;
}

ret_t nvmlGpuInstanceGetComputeInstances(instance_t instance, unsigned number, instance_t *out, unsigned *count) {
    mig_profile p;
    ENTER_INSTANCE(instance);
    *count = fits(instance, number, &p) && has_compute(instance);
    if (out && *count) out[0] = handle_of(instance->gpu, instance->id);
    return SUCCESS;
}

ret_t nvmlGpuInstanceGetComputeInstanceById(instance_t instance, unsigned id, instance_t *out) {
    ENTER_INSTANCE(instance);
    if (id || !has_compute(instance)) return NOT_FOUND;
    *out = handle_of(instance->gpu, instance->id);
    return SUCCESS;
}

ret_t nvmlComputeInstanceGetInfo_v2(instance_t compute, compute_info *out) {
    mig_record r;
    ENTER_INSTANCE(compute);
    if (!mig_record_of(compute->gpu, compute->id, &r) || !r.compute) return NOT_FOUND;
    /* Its own profile's number, which is another than that of the GPU instance it fills. */
    mig_profile p;
    unsigned number = 0;
    while (number < sizeof slices_of / sizeof *slices_of && !fits(compute, number, &p)) number++;
    *out = (compute_info){device_of(r.gpu, r.id), mig_handle(r.gpu, r.id), 0, number, {0, r.size}};
    return SUCCESS;
}

ret_t nvmlComputeInstanceDestroy(instance_t compute) {
    ENTER_INSTANCE(compute);
    return mig_change(compute->gpu, compute->id, 0);
}

/* 0 default, 2 nobody, 3 one process at a time; 1 is not made any more. A cut GPU has none. */
ret_t nvmlDeviceGetComputeMode(dev_t_ device, unsigned *out) {
    long long mode = 0;
    ENTER(device);
    if (!setting(device->gpu, "compute_mode", &mode)) gpu_number(device->gpu, "compute_mode", &mode);
    *out = (unsigned)mode;
    return SUCCESS;
}

ret_t nvmlDeviceSetComputeMode(dev_t_ device, unsigned mode) {
    ENTER(device);
    if (mode > 3) return INVALID_ARGUMENT;
    if (mode == 1 || mig_mode(device->gpu)) return NOT_SUPPORTED;
    change_setting(device->gpu, "compute_mode", mode);
    return SUCCESS;
}
