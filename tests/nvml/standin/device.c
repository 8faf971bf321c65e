/* GPUs: identity, memory, readings, links. Compiled with OLD_DRIVER it lacks newer functions. */
#define _GNU_SOURCE
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MIB (1024ull * 1024)
#define ENTER(device) do { ret_t rc_ = enter_device(__func__, device); if (rc_ != SUCCESS) return rc_; } while (0)

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_info;
typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version; int sensor, temperature; } temperature_v1;
typedef struct { unsigned sms, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices; unsigned long long memory_mib; } attributes;

static struct { unsigned gpu, instance; } devices[MAX_GPUS][MAX_INSTANCES + 1];

dev_t_ device_of(unsigned gpu, unsigned instance) {
    unsigned place = instance == WHOLE ? MAX_INSTANCES : instance;
    devices[gpu][place].gpu = gpu;
    devices[gpu][place].instance = instance;
    return (dev_t_)&devices[gpu][place];
}

ret_t copy_text(const char *text, char *out, unsigned size) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return SUCCESS;
}

ret_t number_of(dev_t_ device, const char *key, unsigned *out) {
    long long value;
    if (!gpu_number(device->gpu, key, &value)) return NOT_SUPPORTED;
    *out = (unsigned)value;
    return SUCCESS;
}

static ret_t text_of(dev_t_ device, const char *key, char *out, unsigned size) {
    char text[256];
    return gpu_text(device->gpu, key, text, sizeof text) ? copy_text(text, out, size) : NOT_SUPPORTED;
}

ret_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ret_t rc = enter(__func__);
    return rc == SUCCESS ? init_library() : rc;
}

ret_t nvmlInit_v2(void) {
    ret_t rc = enter(__func__);
    return rc == SUCCESS ? init_library() : rc;
}

ret_t nvmlShutdown(void) {
    ret_t rc = enter(__func__);
    return rc == SUCCESS ? shutdown_library() : rc;
}

const char *nvmlErrorString(ret_t rc) {
    switch (rc) {
    case SUCCESS: return "The operation was successful";
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

ret_t nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char text[80] = "580.65.06";
    ret_t rc = enter(__func__);
    if (rc != SUCCESS) return rc;
    state_text("driver.version", text, sizeof text);
    return copy_text(text, out, size);
}

ret_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ret_t rc = enter(__func__);
    if (rc == SUCCESS) *out = 13000;
    return rc;
}

ret_t nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

ret_t nvmlDeviceGetCount_v2(unsigned *out) {
    ret_t rc = enter(__func__);
    if (rc == SUCCESS) *out = gpu_count();
    return rc;
}

ret_t nvmlDeviceGetHandleByIndex_v2(unsigned index, dev_t_ *out) {
    ret_t rc = enter_gpu(__func__, index);
    if (rc == SUCCESS) *out = device_of(index, WHOLE);
    return rc;
}

static ret_t find(const char *function, const char *key, const char *wanted, dev_t_ *out) {
    char text[256];
    mig_record records[MAX_INSTANCES];
    ret_t rc = enter(function);
    if (rc != SUCCESS) return rc;
    for (unsigned gpu = 0; gpu < gpu_count(); gpu++) {
        if (gpu_text(gpu, key, text, sizeof text) && !strcasecmp(text, wanted)) {
            *out = device_of(gpu, WHOLE);
            return enter_gpu(function, gpu);
        }
        int count = strcmp(key, "uuid") ? 0 : mig_records(gpu, records);
        for (int i = 0; i < count; i++) {
            if (!records[i].compute || strcmp(records[i].uuid, wanted)) continue;
            *out = device_of(gpu, records[i].id);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

ret_t nvmlDeviceGetHandleByUUID(const char *uuid, dev_t_ *out) { return find(__func__, "uuid", uuid, out); }
ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, dev_t_ *out) { return find(__func__, "pci", pci, out); }

ret_t nvmlDeviceGetName(dev_t_ device, char *out, unsigned size) {
    char text[256], full[512];
    mig_record record;
    mig_profile profile;
    ENTER(device);
    if (device->instance == WHOLE) return text_of(device, "name", out, size);
    if (!mig_record_of(device->gpu, device->instance, &record)) return NOT_FOUND;
    if (!gpu_text(device->gpu, "name", text, sizeof text)) return NOT_SUPPORTED;
    if (!mig_profile_by_id(device->gpu, record.profile, &profile)) return UNKNOWN;
    snprintf(full, sizeof full, "%s %s", text, profile.name);
    return copy_text(full, out, size);
}

ret_t nvmlDeviceGetUUID(dev_t_ device, char *out, unsigned size) {
    mig_record record;
    ENTER(device);
    if (device->instance == WHOLE) return text_of(device, "uuid", out, size);
    return mig_record_of(device->gpu, device->instance, &record) ? copy_text(record.uuid, out, size) : NOT_FOUND;
}

ret_t nvmlDeviceGetSerial(dev_t_ device, char *out, unsigned size) {
    ENTER(device);
    return text_of(device, "serial", out, size);
}

ret_t nvmlDeviceGetIndex(dev_t_ device, unsigned *out) {
    ENTER(device);
    *out = device->gpu;
    return SUCCESS;
}

ret_t nvmlDeviceGetMinorNumber(dev_t_ device, unsigned *out) {
    ENTER(device);
    if (number_of(device, "minor", out) != SUCCESS) *out = device->gpu;
    return SUCCESS;
}

ret_t nvmlDeviceGetArchitecture(dev_t_ device, unsigned *out) {
    ENTER(device);
    return number_of(device, "architecture", out);
}

ret_t nvmlDeviceGetBrand(dev_t_ device, unsigned *out) {
    ENTER(device);
    *out = 14;
    return SUCCESS;
}

ret_t nvmlDeviceGetCudaComputeCapability(dev_t_ device, int *major, int *minor) {
    unsigned value;
    ENTER(device);
    ret_t rc = number_of(device, "compute_capability", &value);
    if (rc != SUCCESS) value = 80;
    *major = (int)(value / 10);
    *minor = (int)(value % 10);
    return SUCCESS;
}

static ret_t fill_pci(const char *text, pci_info *out) {
    unsigned function;
    memset(out, 0, sizeof *out);
    if (sscanf(text, "%x:%x:%x.%x", &out->domain, &out->bus, &out->device, &function) != 4) return UNKNOWN;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.%u", out->domain, out->bus & 0xFF, out->device & 0xFF, function & 7);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.%u", out->domain & 0xFFFF, out->bus & 0xFF, out->device & 0xFF, function & 7);
    out->id = 0x20B010DE;
    return SUCCESS;
}

ret_t nvmlDeviceGetPciInfo_v3(dev_t_ device, pci_info *out) {
    char text[64];
    ENTER(device);
    return gpu_text(device->gpu, "pci", text, sizeof text) ? fill_pci(text, out) : NOT_SUPPORTED;
}

static ret_t memory_of(dev_t_ device, memory_v2 *out) {
    unsigned total, used = 0, reserved = 0;
    char key[64];
    mig_record record;
    mig_profile profile;
    if (device->instance == WHOLE) {
        ret_t rc = number_of(device, "memory_total_mib", &total);
        if (rc != SUCCESS) return rc;
        number_of(device, "memory_used_mib", &used);
        number_of(device, "memory_reserved_mib", &reserved);
    } else {
        if (!mig_record_of(device->gpu, device->instance, &record) || !record.compute) return NOT_FOUND;
        if (!mig_profile_by_id(device->gpu, record.profile, &profile)) return UNKNOWN;
        total = profile.memory_mib;
        snprintf(key, sizeof key, "gi.%u.memory_used_mib", device->instance);
        number_of(device, key, &used);
    }
    out->total = total * MIB;
    out->used = used * MIB;
    out->reserved = reserved * MIB;
    out->free = out->total - out->used - out->reserved;
    return SUCCESS;
}

ret_t nvmlDeviceGetMemoryInfo(dev_t_ device, memory_v1 *out) {
    memory_v2 memory;
    ENTER(device);
    ret_t rc = memory_of(device, &memory);
    if (rc == SUCCESS) *out = (memory_v1){memory.total, memory.free, memory.used + memory.reserved};
    return rc;
}

ret_t nvmlDeviceGetUtilizationRates(dev_t_ device, utilization *out) {
    ENTER(device);
    /* As on real cards: with MIG on there is no utilisation of the whole GPU. */
    if (device->instance != WHOLE || mig_mode(device->gpu)) return NOT_SUPPORTED;
    if (number_of(device, "utilization_memory", &out->memory) != SUCCESS) out->memory = 0;
    return number_of(device, "utilization", &out->gpu);
}

ret_t nvmlDeviceGetPowerUsage(dev_t_ device, unsigned *out) {
    ENTER(device);
    return number_of(device, "power_mw", out);
}

ret_t nvmlDeviceGetTotalEnergyConsumption(dev_t_ device, unsigned long long *out) {
    long long value;
    ENTER(device);
    if (!gpu_number(device->gpu, "energy_mj", &value)) return NOT_SUPPORTED;
    *out = (unsigned long long)value;
    return SUCCESS;
}

ret_t nvmlDeviceGetClockInfo(dev_t_ device, unsigned type, unsigned *out) {
    static const char *const keys[] = {"clock.graphics_mhz", "clock.sm_mhz", "clock.memory_mhz", "clock.video_mhz"};
    ENTER(device);
    return type < 4 ? number_of(device, keys[type], out) : INVALID_ARGUMENT;
}

ret_t nvmlDeviceGetTemperature(dev_t_ device, unsigned sensor, unsigned *out) {
    (void)sensor;
    ENTER(device);
    return number_of(device, "temperature_c", out);
}

static ret_t engine_of(dev_t_ device, const char *key, unsigned *out, unsigned *period_us) {
    if (device->instance != WHOLE || mig_mode(device->gpu)) return NOT_SUPPORTED;
    *period_us = 167000;
    return number_of(device, key, out);
}

ret_t nvmlDeviceGetEncoderUtilization(dev_t_ device, unsigned *out, unsigned *period_us) {
    ENTER(device);
    return engine_of(device, "utilization_encoder", out, period_us);
}

ret_t nvmlDeviceGetDecoderUtilization(dev_t_ device, unsigned *out, unsigned *period_us) {
    ENTER(device);
    return engine_of(device, "utilization_decoder", out, period_us);
}

ret_t nvmlDeviceGetPcieReplayCounter(dev_t_ device, unsigned *out) {
    ENTER(device);
    return number_of(device, "pcie_replays", out);
}

ret_t nvmlDeviceGetTotalEccErrors(dev_t_ device, unsigned error, unsigned counter, unsigned long long *out) {
    char key[64];
    long long value;
    ENTER(device);
    snprintf(key, sizeof key, "ecc.%s.%s", counter ? "aggregate" : "volatile", error ? "uncorrected" : "corrected");
    if (!gpu_number(device->gpu, key, &value)) return NOT_SUPPORTED;
    *out = (unsigned long long)value;
    return SUCCESS;
}

ret_t nvmlDeviceGetRemappedRows(dev_t_ device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    char text[64];
    ENTER(device);
    if (!gpu_text(device->gpu, "remapped_rows", text, sizeof text)) return NOT_SUPPORTED;
    return sscanf(text, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? SUCCESS : UNKNOWN;
}

/* A link reads "gpu 00000000:0F:00.0", "switch 00000000:C1:00.0" or "down". */
static ret_t link_of(dev_t_ device, unsigned link, char *kind, char *pci) {
    char key[32], text[96];
    snprintf(key, sizeof key, "link.%u", link);
    if (!gpu_text(device->gpu, key, text, sizeof text)) return NOT_SUPPORTED;
    pci[0] = 0;
    return sscanf(text, "%15s %31s", kind, pci) >= 1 ? SUCCESS : UNKNOWN;
}

ret_t nvmlDeviceGetNvLinkState(dev_t_ device, unsigned link, unsigned *out) {
    char kind[16], pci[32];
    ENTER(device);
    ret_t rc = link_of(device, link, kind, pci);
    if (rc == SUCCESS) *out = strcmp(kind, "down") != 0;
    return rc;
}

ret_t nvmlDeviceGetNvLinkRemotePciInfo_v2(dev_t_ device, unsigned link, pci_info *out) {
    char kind[16], pci[32];
    ENTER(device);
    ret_t rc = link_of(device, link, kind, pci);
    return rc == SUCCESS ? fill_pci(pci, out) : rc;
}

ret_t nvmlDeviceGetTopologyCommonAncestor(dev_t_ a, dev_t_ b, unsigned *out) {
    char key[48];
    long long value;
    ENTER(a);
    ret_t rc = enter_device(__func__, b);
    if (rc != SUCCESS) return rc;
    unsigned low = a->gpu < b->gpu ? a->gpu : b->gpu, high = a->gpu < b->gpu ? b->gpu : a->gpu;
    snprintf(key, sizeof key, "ancestor.%u.%u", low, high);
    if (!state_number(key, &value) && !state_number("ancestor", &value)) return NOT_SUPPORTED;
    *out = (unsigned)value;
    return SUCCESS;
}

ret_t nvmlDeviceGetP2PStatus(dev_t_ a, dev_t_ b, unsigned index, unsigned *out) {
    char key[48];
    long long value;
    ENTER(a);
    ret_t rc = enter_device(__func__, b);
    if (rc != SUCCESS) return rc;
    unsigned low = a->gpu < b->gpu ? a->gpu : b->gpu, high = a->gpu < b->gpu ? b->gpu : a->gpu;
    snprintf(key, sizeof key, "p2p.%u.%u.%u", index, low, high);
    *out = state_number(key, &value) ? (unsigned)value : 0;
    return SUCCESS;
}

#ifndef OLD_DRIVER
ret_t nvmlDeviceGetMemoryInfo_v2(dev_t_ device, memory_v2 *out) {
    ENTER(device);
    return out->version == 0x02000028 ? memory_of(device, out) : VERSION_MISMATCH;
}

ret_t nvmlDeviceGetTemperatureV(dev_t_ device, temperature_v1 *out) {
    unsigned value;
    ENTER(device);
    if (out->version != 0x100000C) return VERSION_MISMATCH;
    ret_t rc = number_of(device, "temperature_c", &value);
    if (rc == SUCCESS) out->temperature = (int)value;
    return rc;
}

ret_t nvmlDeviceGetNvLinkRemoteDeviceType(dev_t_ device, unsigned link, unsigned *out) {
    char kind[16], pci[32];
    ENTER(device);
    ret_t rc = link_of(device, link, kind, pci);
    if (rc == SUCCESS) *out = !strcmp(kind, "switch") ? 2 : !strcmp(kind, "gpu") ? 0 : 0xFF;
    return rc;
}
#endif

ret_t nvmlDeviceGetAttributes_v2(dev_t_ device, attributes *out) {
    mig_record record;
    mig_profile profile;
    ENTER(device);
    if (device->instance == WHOLE || !mig_record_of(device->gpu, device->instance, &record)) return NOT_SUPPORTED;
    if (!mig_profile_by_id(device->gpu, record.profile, &profile)) return UNKNOWN;
    memset(out, 0, sizeof *out);
    out->sms = profile.sms;
    out->gi_slices = out->ci_slices = profile.slices;
    out->memory_mib = profile.memory_mib;
    return SUCCESS;
}
