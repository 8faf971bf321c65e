/* The state file, faults on demand and call counts. */
#define _GNU_SOURCE
#include "standin.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_COUNTED 256

typedef struct { char *key; char *value; } entry;
typedef struct { char name[56]; uint64_t count; } counted;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static entry *entries;
static size_t entry_count;
static char *buffer;
static struct stat seen;
static char seen_path[1024];
static counted *counts;
static char counts_path[1024];
static int references;

const char *state_path(const char *suffix, char *out, size_t size) {
    const char *path = getenv("GPULOOM_STANDIN_STATE");
    snprintf(out, size, "%s%s", path ? path : "", suffix);
    return path ? out : NULL;
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const entry *)a)->key, ((const entry *)b)->key);
}

static void parse(char *text) {
    size_t room = 0;
    entry_count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *equals = strchr(line, '=');
        if (!equals || line[0] == '#') continue;
        *equals = 0;
        if (entry_count == room) {
            room = room ? room * 2 : 256;
            entries = realloc(entries, room * sizeof *entries);
        }
        entries[entry_count++] = (entry){line, equals + 1};
    }
    qsort(entries, entry_count, sizeof *entries, by_key);
}

/* With the lock held. Tests replace the file by rename, so a half-written one is never seen. */
static void refresh(void) {
    char path[1024];
    struct stat now;
    if (!state_path("", path, sizeof path) || stat(path, &now) != 0) return;
    if (!strcmp(path, seen_path) && now.st_ino == seen.st_ino && now.st_size == seen.st_size &&
        now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec)
        return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    char *text = calloc(1, (size_t)now.st_size + 1);
    size_t length = fread(text, 1, (size_t)now.st_size, file);
    fclose(file);
    text[length] = 0;
    free(buffer);
    free(entries);
    entries = NULL;
    buffer = text;
    parse(text);
    seen = now;
    snprintf(seen_path, sizeof seen_path, "%s", path);
}

int state_text(const char *key, char *out, size_t size) {
    entry wanted = {(char *)key, NULL};
    pthread_mutex_lock(&lock);
    refresh();
    entry *found = entry_count ? bsearch(&wanted, entries, entry_count, sizeof *entries, by_key) : NULL;
    if (found) snprintf(out, size, "%s", found->value);
    pthread_mutex_unlock(&lock);
    return found != NULL;
}

int state_number(const char *key, long long *out) {
    char text[64];
    if (!state_text(key, text, sizeof text) || !text[0]) return 0;
    *out = strtoll(text, NULL, 0);
    return 1;
}

int gpu_text(unsigned gpu, const char *key, char *out, size_t size) {
    char full[160];
    snprintf(full, sizeof full, "gpu.%u.%s", gpu, key);
    if (state_text(full, out, size)) return out[0] != 0;
    snprintf(full, sizeof full, "all.%s", key);
    return state_text(full, out, size) && out[0] != 0;
}

int gpu_number(unsigned gpu, const char *key, long long *out) {
    char text[64];
    if (!gpu_text(gpu, key, text, sizeof text)) return 0;
    *out = strtoll(text, NULL, 0);
    return 1;
}

unsigned gpu_count(void) {
    long long count = 0;
    state_number("gpus", &count);
    return (unsigned)count;
}

/* What was set through the library lies in <state>.settings, one line a change; the last one counts. */
int setting(unsigned gpu, const char *key, long long *out) {
    char path[1024], line[160], name[96];
    FILE *file = state_path(".settings", path, sizeof path) ? fopen(path, "r") : NULL;
    unsigned whose;
    long long value;
    int found = 0;
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%u %95s %lld", &whose, name, &value) != 3 || whose != gpu || strcmp(name, key)) continue;
        *out = value;
        found = 1;
    }
    fclose(file);
    return found;
}

void change_setting(unsigned gpu, const char *key, long long value) {
    char path[1024];
    int fd = state_path(".settings", path, sizeof path) ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (fd < 0) return;
    dprintf(fd, "%u %s %lld\n", gpu, key, value);
    close(fd);
}

/* The counts are shared memory, so that a test reads those of another process, too. */
static void count_call(const char *function) {
    char path[1024];
    pthread_mutex_lock(&lock);
    if (state_path(".calls", path, sizeof path) && strcmp(path, counts_path)) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
        if (fd >= 0 && ftruncate(fd, MAX_COUNTED * sizeof(counted)) == 0) {
            void *mapped = mmap(NULL, MAX_COUNTED * sizeof(counted), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
            if (mapped != MAP_FAILED) {
                if (counts) munmap(counts, MAX_COUNTED * sizeof(counted));
                counts = mapped;
                snprintf(counts_path, sizeof counts_path, "%s", path);
            }
        }
        if (fd >= 0) close(fd);
    }
    for (int i = 0; counts && i < MAX_COUNTED; i++) {
        if (counts[i].name[0] && strcmp(counts[i].name, function)) continue;
        snprintf(counts[i].name, sizeof counts[i].name, "%s", function);
        __atomic_add_fetch(&counts[i].count, 1, __ATOMIC_RELAXED);
        break;
    }
    pthread_mutex_unlock(&lock);
}

static void pause_ms(long long duration_ms) {
    struct timespec wait = {duration_ms / 1000, (duration_ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
}

static int asked(unsigned gpu, const char *what, const char *function, long long *value) {
    char key[160];
    snprintf(key, sizeof key, "%s.%s", what, function);
    if (gpu == WHOLE) return state_number(key, value);
    return gpu_number(gpu, key, value) || gpu_number(gpu, what, value);
}

/* Latency, then a hang for as long as the state asks for it, then the fault's return code. */
static ret_t suffer(const char *function, unsigned gpu) {
    long long value = 0;
    if (asked(gpu, "latency_ms", function, &value)) pause_ms(value);
    while (asked(gpu, "hang", function, &value) && value) pause_ms(5);
    return asked(gpu, "fault", function, &value) ? (ret_t)value : SUCCESS;
}

int lies(const char *function, unsigned gpu) {
    char key[160];
    long long value = 0;
    snprintf(key, sizeof key, "lie.%s", function);
    return gpu_number(gpu, key, &value) && value;
}

ret_t enter(const char *function) {
    count_call(function);
    pthread_mutex_lock(&lock);
    int open = references > 0;
    pthread_mutex_unlock(&lock);
    if (!open && strcmp(function, "nvmlInitWithFlags") && strcmp(function, "nvmlInit_v2")) return UNINITIALIZED;
    return suffer(function, WHOLE);
}

ret_t enter_gpu(const char *function, unsigned gpu) {
    ret_t rc = enter(function);
    if (rc != SUCCESS) return rc;
    if (gpu >= gpu_count()) return INVALID_ARGUMENT;
    return suffer(function, gpu);
}

ret_t enter_device(const char *function, dev_t_ device) {
    if (!device) {
        count_call(function);
        return INVALID_ARGUMENT;
    }
    ret_t rc = enter_gpu(function, device->gpu);
    /* A handle of a GPU that is no longer listed is a lost GPU, not a wrong argument. */
    return rc == INVALID_ARGUMENT && device->gpu >= gpu_count() ? GPU_IS_LOST : rc;
}

ret_t init_library(void) {
    char path[1024];
    if (!state_path("", path, sizeof path) || access(path, R_OK) != 0) return 9; /* DRIVER_NOT_LOADED */
    pthread_mutex_lock(&lock);
    references++;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

ret_t shutdown_library(void) {
    pthread_mutex_lock(&lock);
    ret_t rc = references > 0 ? SUCCESS : UNINITIALIZED;
    if (references > 0) references--;
    pthread_mutex_unlock(&lock);
    return rc;
}
