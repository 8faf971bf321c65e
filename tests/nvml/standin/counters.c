/* Throttling: why clocks are low now, and for how long they were. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>

#define ENTER(device) do { ret_t rc_ = enter_device(__func__, device); if (rc_ != SUCCESS) return rc_; } while (0)

typedef struct { unsigned long long reference_us, violation_ns; } violation_time;

int violation_of(unsigned gpu, unsigned policy, long long *out) {
    static const char *const keys[] = {"power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability"};
    char key[64];
    if (policy >= sizeof keys / sizeof *keys) return 0;
    snprintf(key, sizeof key, "violation.%s_ns", keys[policy]);
    return gpu_number(gpu, key, out);
}

ret_t nvmlDeviceGetViolationStatus(dev_t_ device, unsigned policy, violation_time *out) {
    long long value;
    ENTER(device);
    if (!violation_of(device->gpu, policy, &value)) return NOT_SUPPORTED;
    *out = (violation_time){0, (unsigned long long)value};
    return SUCCESS;
}

static ret_t reasons_of(dev_t_ device, unsigned long long *out) {
    long long value;
    if (!gpu_number(device->gpu, "clock.event_reasons", &value)) return NOT_SUPPORTED;
    *out = (unsigned long long)value;
    return SUCCESS;
}

ret_t nvmlDeviceGetCurrentClocksThrottleReasons(dev_t_ device, unsigned long long *out) {
    ENTER(device);
    return reasons_of(device, out);
}

#ifndef OLD_DRIVER
ret_t nvmlDeviceGetCurrentClocksEventReasons(dev_t_ device, unsigned long long *out) {
    ENTER(device);
    return reasons_of(device, out);
}
#endif
