/* A stand-in for NVIDIA's libnvidia-ml.so.1: the same functions, structures and return codes, without a GPU.
 *
 * What it shows comes from the text file named by GPULOOM_STANDIN_STATE, read again whenever it changes:
 * lines "key=value"; "gpu.3.name" falls back to "all.name". Beside it lie <state>.mig (MIG instances, also
 * written by the library), <state>.settings (what was set through it), <state>.events (events to deliver,
 * appended by tests) and <state>.calls (counts).
 */
#ifndef GPULOOM_STANDIN_H
#define GPULOOM_STANDIN_H

#include <stddef.h>
#include <stdint.h>

#define MAX_GPUS 64
#define MAX_INSTANCES 15
#define VALUE_SIZE 4096
#define WHOLE 0xFFFFFFFFu

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, RESET_REQUIRED = 16, IN_USE = 19, INSUFFICIENT_RESOURCES = 23,
    VERSION_MISMATCH = 25, UNKNOWN = 999
};

typedef int ret_t;
typedef struct { unsigned gpu; unsigned instance; } *dev_t_; /* instance is WHOLE, or the GPU instance's id */
typedef struct { unsigned gpu; unsigned id; } *instance_t;

/* state.c */
int state_text(const char *key, char *out, size_t size);
int state_number(const char *key, long long *out);
int gpu_text(unsigned gpu, const char *key, char *out, size_t size);
int gpu_number(unsigned gpu, const char *key, long long *out);
int setting(unsigned gpu, const char *key, long long *out);
void change_setting(unsigned gpu, const char *key, long long value);
unsigned gpu_count(void);
const char *state_path(const char *suffix, char *out, size_t size);
ret_t enter(const char *function);
ret_t enter_gpu(const char *function, unsigned gpu);
ret_t enter_device(const char *function, dev_t_ device);
/* Whether the function is to say that it did what it did not: key "lie.FUNCTION" of the GPU. */
int lies(const char *function, unsigned gpu);
ret_t init_library(void);
ret_t shutdown_library(void);

/* device.c */
dev_t_ device_of(unsigned gpu, unsigned instance);
ret_t copy_text(const char *text, char *out, unsigned size);
ret_t number_of(dev_t_ device, const char *key, unsigned *out);

/* counters.c */
int violation_of(unsigned gpu, unsigned policy, long long *out);

/* mig.c */
typedef struct {
    unsigned gpu, id, profile, start, size;
    int compute; /* 1 if the instance has its compute instance */
    char uuid[80];
} mig_record;
typedef struct {
    unsigned number, id, slices, size, max, memory_mib, sms;
    char name[64];
    unsigned starts[16], start_count;
} mig_profile;
typedef struct { unsigned start, size; } placement;
int mig_mode(unsigned gpu);
instance_t mig_handle(unsigned gpu, unsigned id);
ret_t mig_change(unsigned gpu, unsigned id, int compute);
int mig_records(unsigned gpu, mig_record *out);
int mig_record_of(unsigned gpu, unsigned id, mig_record *out);
int mig_profile_by_id(unsigned gpu, unsigned id, mig_profile *out);

#endif
