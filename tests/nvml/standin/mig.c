/* MIG: mode, profiles, GPU instances. They live in <state>.mig, so that processes share them. */
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_RECORDS 512
#define ENTER(device) do { ret_t rc_ = enter_device(__func__, device); if (rc_ != SUCCESS) return rc_; } while (0)

typedef struct { dev_t_ device; unsigned id, profile; placement where; } instance_info;
typedef struct {
    unsigned id, p2p, slices, count, sms, copy, decoder, encoder, jpeg, ofa;
    unsigned long long memory_mib;
} profile_info;
typedef struct {
    unsigned version, id, p2p, slices, count, sms, copy, decoder, encoder, jpeg, ofa;
    unsigned long long memory_mib;
    char name[96];
} profile_info_v2;

static struct { unsigned gpu, id; } instances[MAX_GPUS][MAX_INSTANCES];

instance_t mig_handle(unsigned gpu, unsigned id) {
    instances[gpu][id].gpu = gpu;
    instances[gpu][id].id = id;
    return (instance_t)&instances[gpu][id];
}

static int lock_records(void) {
    char path[1024];
    if (!state_path(".mig", path, sizeof path)) return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0) flock(fd, LOCK_EX);
    return fd;
}

static int load(int fd, mig_record *out) {
    int count = 0;
    FILE *file = fdopen(dup(fd), "r");
    if (!file) return 0;
    rewind(file);
    mig_record r;
    while (count < MAX_RECORDS &&
           fscanf(file, "%u %u %u %u %u %d %79s", &r.gpu, &r.id, &r.profile, &r.start, &r.size, &r.compute, r.uuid) == 7)
        out[count++] = r;
    fclose(file);
    return count;
}

/* What the kernel driver would show in /proc, under the folder <state>.proc: one capability for each GPU instance,
 * and one for its compute instance. The files of instances that are gone stay, as nobody may open them. */
static void show_capabilities(const mig_record *r) {
    char root[1024], path[1400];
    if (!state_path(".proc", root, sizeof root) || access(root, W_OK) != 0) return;
    for (int compute = 0; compute <= r->compute; compute++) {
        int length = snprintf(path, sizeof path, "%s/driver/nvidia/capabilities/gpu%u/mig/gi%u%s", root, r->gpu, r->id,
                              compute ? "/ci0" : "");
        for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
            *slash = 0;
            mkdir(path, 0755);
            *slash = '/';
        }
        mkdir(path, 0755);
        snprintf(path + length, sizeof path - (size_t)length, "/access");
        FILE *file = fopen(path, "w");
        if (!file) continue;
        fprintf(file, "DeviceFileMinor: %u\nDeviceFileMode: 292\n", 3 + r->gpu * 100 + r->id * 2 + (unsigned)compute);
        fclose(file);
    }
}

static void save(int fd, const mig_record *records, int count) {
    if (ftruncate(fd, 0) != 0) return;
    lseek(fd, 0, SEEK_SET);
    for (int i = 0; i < count; i++) {
        const mig_record *r = &records[i];
        show_capabilities(r);
        dprintf(fd, "%u %u %u %u %u %d %s\n", r->gpu, r->id, r->profile, r->start, r->size, r->compute, r->uuid);
    }
}

int mig_records(unsigned gpu, mig_record *out) {
    mig_record all[MAX_RECORDS];
    int fd = lock_records(), count = 0;
    if (fd < 0) return 0;
    int there = load(fd, all);
    close(fd);
    for (int i = 0; i < there && count < MAX_INSTANCES; i++)
        if (all[i].gpu == gpu) out[count++] = all[i];
    return count;
}

int mig_record_of(unsigned gpu, unsigned id, mig_record *out) {
    mig_record records[MAX_INSTANCES];
    int count = mig_records(gpu, records);
    for (int i = 0; i < count; i++) {
        if (records[i].id != id) continue;
        *out = records[i];
        return 1;
    }
    return 0;
}

/* "id name slices size max memory_mib sms starts", e.g. "19 1g.5gb 1 1 7 4864 14 0,1,2,3,4,5,6". */
static int profile_at(unsigned gpu, unsigned number, mig_profile *out) {
    char key[48], text[256], name[48], starts[64], *rest = NULL;
    snprintf(key, sizeof key, "mig.profile.%u", number);
    if (!gpu_text(gpu, key, text, sizeof text)) return 0;
    memset(out, 0, sizeof *out);
    out->number = number;
    if (sscanf(text, "%u %47s %u %u %u %u %u %63s", &out->id, name, &out->slices, &out->size, &out->max,
               &out->memory_mib, &out->sms, starts) != 8)
        return 0;
    snprintf(out->name, sizeof out->name, "MIG %s", name);
    for (char *item = strtok_r(starts, ",", &rest); item && out->start_count < 16; item = strtok_r(NULL, ",", &rest))
        out->starts[out->start_count++] = (unsigned)atoi(item);
    return 1;
}

int mig_profile_by_id(unsigned gpu, unsigned id, mig_profile *out) {
    for (unsigned number = 0; number < 18; number++)
        if (profile_at(gpu, number, out) && out->id == id) return 1;
    return 0;
}

static int mode_of(unsigned gpu, long long *mode) {
    long long set;
    if (!gpu_number(gpu, "mig.mode", mode)) return 0;
    if (setting(gpu, "mig.mode", &set)) *mode = set;
    return 1;
}

int mig_mode(unsigned gpu) {
    long long mode = 0;
    return mode_of(gpu, &mode) && mode;
}

ret_t nvmlDeviceGetMigMode(dev_t_ device, unsigned *current, unsigned *pending) {
    long long mode, next;
    ENTER(device);
    if (!mode_of(device->gpu, &mode)) return NOT_SUPPORTED;
    *current = (unsigned)mode;
    *pending = setting(device->gpu, "mig.pending", &next) || gpu_number(device->gpu, "mig.pending", &next)
                   ? (unsigned)next
                   : (unsigned)mode;
    return SUCCESS;
}

/* The call succeeds, and the activation says what became of it: a GPU with work or instances on it keeps its
 * mode, and one of Ampere takes the new one at its next reset (tests: Standin.reset_gpu). */
ret_t nvmlDeviceSetMigMode(dev_t_ device, unsigned mode, ret_t *activation) {
    long long now, status, architecture = 7;
    mig_record records[MAX_INSTANCES];
    char text[VALUE_SIZE];
    ENTER(device);
    if (!mode_of(device->gpu, &now)) return NOT_SUPPORTED;
    if (mode > 1) return INVALID_ARGUMENT;
    gpu_number(device->gpu, "architecture", &architecture);
    change_setting(device->gpu, "mig.pending", mode);
    if (lies(__func__, device->gpu)) {
        *activation = SUCCESS;
        return SUCCESS;
    }
    if (gpu_number(device->gpu, "mig.activation", &status)) *activation = (ret_t)status;
    else if ((unsigned)now == mode) *activation = SUCCESS;
    else if (mig_records(device->gpu, records) || gpu_text(device->gpu, "processes", text, sizeof text)) *activation = IN_USE;
    else *activation = architecture <= 7 ? RESET_REQUIRED : SUCCESS;
    if (*activation == SUCCESS) change_setting(device->gpu, "mig.mode", mode);
    return SUCCESS;
}

ret_t nvmlDeviceIsMigDeviceHandle(dev_t_ device, unsigned *out) {
    ENTER(device);
    *out = device->instance != WHOLE;
    return SUCCESS;
}

ret_t nvmlDeviceGetMaxMigDeviceCount(dev_t_ device, unsigned *out) {
    long long mode;
    ENTER(device);
    *out = mode_of(device->gpu, &mode) ? 7 : 0;
    return SUCCESS;
}

ret_t nvmlDeviceGetMigDeviceHandleByIndex(dev_t_ device, unsigned index, dev_t_ *out) {
    mig_record records[MAX_INSTANCES];
    ENTER(device);
    int count = mig_records(device->gpu, records);
    for (int i = 0; i < count; i++) {
        if (!records[i].compute || index--) continue;
        *out = device_of(device->gpu, records[i].id);
        return SUCCESS;
    }
    return NOT_FOUND;
}

ret_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(dev_t_ device, dev_t_ *out) {
    ENTER(device);
    *out = device_of(device->gpu, WHOLE);
    return SUCCESS;
}

ret_t nvmlDeviceGetGpuInstanceId(dev_t_ device, unsigned *out) {
    ENTER(device);
    if (device->instance == WHOLE) return NOT_SUPPORTED;
    *out = device->instance;
    return SUCCESS;
}

ret_t nvmlDeviceGetComputeInstanceId(dev_t_ device, unsigned *out) {
    ENTER(device);
    if (device->instance == WHOLE) return NOT_SUPPORTED;
    *out = 0;
    return SUCCESS;
}

ret_t nvmlDeviceGetGpuInstanceProfileInfo(dev_t_ device, unsigned number, profile_info *out) {
    mig_profile p;
    ENTER(device);
    if (!profile_at(device->gpu, number, &p)) return NOT_SUPPORTED;
    *out = (profile_info){p.id, 0, p.slices, p.max, p.sms, 1, 0, 0, 0, 0, p.memory_mib};
    return SUCCESS;
}

#ifndef OLD_DRIVER
ret_t nvmlDeviceGetGpuInstanceProfileInfoV(dev_t_ device, unsigned number, profile_info_v2 *out) {
    mig_profile p;
    ENTER(device);
    if (out->version != 0x02000098) return VERSION_MISMATCH;
    if (!profile_at(device->gpu, number, &p)) return NOT_SUPPORTED;
    *out = (profile_info_v2){out->version, p.id, 0, p.slices, p.max, p.sms, 1, 0, 0, 0, 0, p.memory_mib, ""};
    snprintf(out->name, sizeof out->name, "%s", p.name);
    return SUCCESS;
}
#endif

ret_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(dev_t_ device, unsigned id, placement *out, unsigned *count) {
    mig_profile p;
    ENTER(device);
    if (!mig_profile_by_id(device->gpu, id, &p)) return NOT_SUPPORTED;
    for (unsigned i = 0; out && i < p.start_count; i++) out[i] = (placement){p.starts[i], p.size};
    *count = p.start_count;
    return SUCCESS;
}

static int is_free(const mig_record *records, int count, unsigned start, unsigned size) {
    for (int i = 0; i < count; i++)
        if (start < records[i].start + records[i].size && records[i].start < start + size) return 0;
    return 1;
}

ret_t nvmlDeviceGetGpuInstanceRemainingCapacity(dev_t_ device, unsigned id, unsigned *out) {
    mig_profile p;
    mig_record records[MAX_INSTANCES];
    ENTER(device);
    if (!mig_profile_by_id(device->gpu, id, &p)) return NOT_SUPPORTED;
    int count = mig_records(device->gpu, records);
    *out = 0;
    for (unsigned i = 0; i < p.start_count; i++) *out += (unsigned)is_free(records, count, p.starts[i], p.size);
    return SUCCESS;
}

static unsigned free_id(const mig_record *records, int count) {
    for (unsigned id = 1; id < MAX_INSTANCES; id++) {
        int taken = 0;
        for (int i = 0; i < count; i++) taken |= records[i].id == id;
        if (!taken) return id;
    }
    return 0;
}

/* Creates at the first start among `starts` that is free. */
static ret_t create(dev_t_ device, const mig_profile *p, const unsigned *starts, unsigned start_count, instance_t *out) {
    mig_record all[MAX_RECORDS], own[MAX_INSTANCES];
    int own_count = 0, same = 0;
    int fd = lock_records(), count = fd < 0 ? 0 : load(fd, all);
    ret_t rc = INSUFFICIENT_RESOURCES;
    for (int i = 0; i < count && own_count < MAX_INSTANCES; i++)
        if (all[i].gpu == device->gpu) {
            same += all[i].profile == p->id;
            own[own_count++] = all[i];
        }
    for (unsigned i = 0; i < start_count && (unsigned)same < p->max && count < MAX_RECORDS; i++) {
        if (!is_free(own, own_count, starts[i], p->size)) continue;
        mig_record *r = &all[count];
        *r = (mig_record){device->gpu, free_id(own, own_count), p->id, starts[i], p->size, 0, ""};
        snprintf(r->uuid, sizeof r->uuid, "none");
        save(fd, all, count + 1);
        *out = mig_handle(device->gpu, r->id);
        rc = SUCCESS;
        break;
    }
    if (fd >= 0) close(fd);
    return rc;
}

static ret_t ready_to_create(dev_t_ device, unsigned id, mig_profile *p) {
    long long mode;
    if (!mode_of(device->gpu, &mode) || !mode) return NOT_SUPPORTED;
    return mig_profile_by_id(device->gpu, id, p) ? SUCCESS : NOT_SUPPORTED;
}

ret_t nvmlDeviceCreateGpuInstance(dev_t_ device, unsigned id, instance_t *out) {
    mig_profile p;
    ENTER(device);
    ret_t rc = ready_to_create(device, id, &p);
    return rc == SUCCESS ? create(device, &p, p.starts, p.start_count, out) : rc;
}

ret_t nvmlDeviceCreateGpuInstanceWithPlacement(dev_t_ device, unsigned id, const placement *where, instance_t *out) {
    mig_profile p;
    ENTER(device);
    if (lies(__func__, device->gpu)) {
        *out = mig_handle(device->gpu, MAX_INSTANCES - 1);
        return SUCCESS;
    }
    ret_t rc = ready_to_create(device, id, &p);
    if (rc != SUCCESS) return rc;
    for (unsigned i = 0; i < p.start_count; i++)
        if (p.starts[i] == where->start && p.size == where->size) return create(device, &p, &where->start, 1, out);
    return INVALID_ARGUMENT;
}

static int in_use(unsigned gpu, unsigned id) {
    char text[VALUE_SIZE], wanted[32];
    snprintf(wanted, sizeof wanted, ":%u:0", id);
    return gpu_text(gpu, "processes", text, sizeof text) && strstr(text, wanted) != NULL;
}

static void name_anew(mig_record *r) {
    static unsigned made;
    snprintf(r->uuid, sizeof r->uuid, "MIG-%08x-%04x-5%03x-8000-%012x", (unsigned)getpid(), r->gpu, r->id, ++made);
}

/* Removes the instance, or (`compute` >= 0) only says whether it has its compute instance. */
ret_t mig_change(unsigned gpu, unsigned id, int compute) {
    mig_record all[MAX_RECORDS];
    int fd = lock_records(), count = fd < 0 ? 0 : load(fd, all);
    ret_t rc = NOT_FOUND;
    for (int i = 0; i < count; i++) {
        if (all[i].gpu != gpu || all[i].id != id) continue;
        if (compute < 0 && all[i].compute) rc = IN_USE;
        else if (compute == 1 && all[i].compute) rc = INSUFFICIENT_RESOURCES;
        else if (compute == 0 && in_use(gpu, id)) rc = IN_USE;
        else {
            rc = SUCCESS;
            if (compute < 0) all[i] = all[--count];
            else {
                all[i].compute = compute;
                /* A device that is made again has another UUID. */
                if (compute) name_anew(&all[i]);
            }
            save(fd, all, count);
        }
        break;
    }
    if (fd >= 0) close(fd);
    return rc;
}

ret_t nvmlGpuInstanceDestroy(instance_t instance) {
    ret_t rc = enter_gpu(__func__, instance->gpu);
    if (rc == SUCCESS && lies(__func__, instance->gpu)) return SUCCESS;
    return rc == SUCCESS ? mig_change(instance->gpu, instance->id, -1) : rc;
}

ret_t nvmlDeviceGetGpuInstances(dev_t_ device, unsigned id, instance_t *out, unsigned *count) {
    mig_profile p;
    mig_record records[MAX_INSTANCES];
    ENTER(device);
    if (!mig_profile_by_id(device->gpu, id, &p)) return NOT_SUPPORTED;
    int there = mig_records(device->gpu, records);
    *count = 0;
    for (int i = 0; i < there; i++) {
        if (records[i].profile != id) continue;
        if (out) out[*count] = mig_handle(device->gpu, records[i].id);
        ++*count;
    }
    return SUCCESS;
}

ret_t nvmlDeviceGetGpuInstanceById(dev_t_ device, unsigned id, instance_t *out) {
    mig_record record;
    ENTER(device);
    if (!mig_record_of(device->gpu, id, &record)) return NOT_FOUND;
    *out = mig_handle(device->gpu, id);
    return SUCCESS;
}

ret_t nvmlGpuInstanceGetInfo(instance_t instance, instance_info *out) {
    mig_record r;
    ret_t rc = enter_gpu(__func__, instance->gpu);
    if (rc != SUCCESS) return rc;
    if (!mig_record_of(instance->gpu, instance->id, &r)) return NOT_FOUND;
    *out = (instance_info){device_of(r.gpu, WHOLE), r.id, r.profile, {r.start, r.size}};
    return SUCCESS;
}
