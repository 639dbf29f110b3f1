/*
 * Copyright (c) 2026, the gpumesh authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Sets the environment of the tasks of a job. Slurm's TaskProlog cannot in a container: it would run inside, where neither
 * its file nor Python exists. slurmstepd calls slurm_spank_user_init once for each step on a node, on the host. There, the
 * program of the TaskProlog computes the environment of all tasks as the user of the job. slurm_spank_task_init, in the
 * process of a task, only copies it. Plugins that enter a container come later in the list.
 *
 * A job never fails because of this plugin: what went wrong is reported in its output.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(gpumesh_job_environment, 1)

#define PROGRAM "/etc/gpumesh/task_prolog"
#define FAILURE "gpumesh: the job environment is not set: "
/* The program asks the controller twice at most, for 5 s each. */
#define TIMEOUT_S 20
/* The environments of all tasks of a node. */
#define MAX_OUTPUT (64u << 20)
/* nogroup on Debian, nobody elsewhere; another one for a user who is in that group. */
#define OTHER_GROUP 65534
/* What the program may use: it reads what users have written. */
#define MAX_MEMORY (1ul << 30)
#define MAX_CPU_S 60
/* The last records of the program: nothing is missing. */
#define END "@end"

/* The output of the program, records that each end with a zero byte: "@RANK" begins those of a task, "@all" those of all
 * tasks, "NAME=VALUE" sets a variable, "NAME" removes one, and "!TEXT" says why nothing is set. */
static char *records;
static size_t records_size;

static int64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Returns a file in memory with the environment of the step, or -1. */
static int write_environment(char **variables) {
    int file = memfd_create("gpumesh", MFD_CLOEXEC);
    if (file < 0)
        return -1;
    for (; *variables; variables++) {
        size_t length = strlen(*variables) + 1;
        for (size_t done = 0; done < length;) {
            ssize_t written = write(file, *variables + done, length - done);
            if (written < 0 && errno == EINTR)
                continue;
            if (written <= 0) {
                close(file);
                return -1;
            }
            done += (size_t)written;
        }
    }
    return lseek(file, 0, SEEK_SET) ? -1 : file;
}

/* Becomes the program, as the user for good: so far, only the effective IDs are those of the user. The process is outside
 * the control groups of the tasks, so no other process of the user may take it over: with a different real group, the
 * kernel refuses ptrace, and the dynamic linker ignores LD_PRELOAD. Only async-signal-safe functions are called, since
 * slurmstepd has other threads. */
static void become_program(int input, int output, char *const *arguments, char *const *environment) {
    sigset_t no_signals;
    uid_t user = geteuid();
    gid_t group = getegid(), other_group = group == OTHER_GROUP ? OTHER_GROUP - 1 : OTHER_GROUP;
    struct rlimit memory = {MAX_MEMORY, MAX_MEMORY}, cpu = {MAX_CPU_S, MAX_CPU_S};
    sigemptyset(&no_signals);
    if (user != getuid() && (syscall(SYS_setresuid, -1, 0, -1) || syscall(SYS_setresgid, other_group, group, group) ||
                             syscall(SYS_setresuid, user, user, user) || !syscall(SYS_setresuid, -1, 0, -1)))
        _exit(126);
    int null = open("/dev/null", O_WRONLY);
    if (null < 0 || dup2(input, 0) < 0 || dup2(output, 1) < 0 || dup2(null, 2) < 0)
        _exit(126);
    if (syscall(SYS_close_range, 3, ~0u, 0))
        _exit(126);
    if (setrlimit(RLIMIT_AS, &memory) || setrlimit(RLIMIT_CPU, &cpu))
        _exit(126);
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &no_signals, NULL);
    setsid();
    umask(022);
    if (chdir("/"))
        _exit(126);
    execve(PROGRAM, arguments, environment);
    _exit(127);
}

/* Reads until the program ends. Returns NULL, or why that failed. */
static const char *read_output(int output) {
    int64_t deadline = milliseconds() + TIMEOUT_S * 1000;
    size_t room = 0;
    for (;;) {
        struct pollfd waiting = {.fd = output, .events = POLLIN};
        int64_t left = deadline - milliseconds();
        int ready = poll(&waiting, 1, left > 0 ? (int)left : 0);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return "its program takes too long";
        if (records_size == room) {
            room = room ? 2 * room : 65536;
            char *larger = room > MAX_OUTPUT ? NULL : realloc(records, room);
            if (!larger)
                return "it is too large";
            records = larger;
        }
        ssize_t count = read(output, records + records_size, room - records_size);
        if (count < 0 && errno != EINTR)
            return strerror(errno);
        if (count == 0)
            return NULL;
        records_size += count > 0 ? (size_t)count : 0;
    }
}

/* Returns NULL, or why that failed. */
static const char *run_program(int input, char *const *arguments, char *const *environment) {
    int output[2];
    if (pipe2(output, O_CLOEXEC))
        return strerror(errno);
    pid_t child = fork();
    if (child < 0) {
        close(output[0]);
        close(output[1]);
        return strerror(errno);
    }
    if (child == 0)
        become_program(input, output[1], arguments, environment);
    close(output[1]);
    const char *failure = read_output(output[0]);
    close(output[0]);
    /* With what it has started. It has ended already, unless it takes too long. */
    kill(-child, SIGKILL);
    kill(child, SIGKILL);
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
    return failure;
}

/* Returns the ranks of the tasks on this node in its component of the job, such as "0,3,6", or NULL. */
static char *list_ranks(spank_t spank) {
    uint32_t count = 0, rank = 0;
    if (spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &count))
        return NULL;
    size_t room = (size_t)count * 11 + 1, used = 0;
    char *list = calloc(room, 1);
    for (uint32_t task = 0; list && task < count; task++) {
        if (spank_get_item(spank, S_JOB_LOCAL_TO_GLOBAL_ID, task, &rank)) {
            free(list);
            return NULL;
        }
        used += (size_t)snprintf(list + used, room - used, "%s%u", task ? "," : "", rank);
    }
    return list;
}

static void format_variable(char *text, size_t size, const char *name) {
    const char *value = getenv(name);
    snprintf(text, size, "%s=%s", name, value ? value : "");
}

static int is_complete(void) {
    return records_size >= sizeof END && !records[records_size - 1] &&
           !strcmp(records + records_size - sizeof END, END);
}

/* On the host, once for each step on a node, with the user's effective IDs. */
int slurm_spank_user_init(spank_t spank, int count, char **words) {
    (void)count;
    (void)words;
    uint32_t step = 0;
    char **variables = NULL, step_text[16], path[4200], configuration[4200], node[300];
    const char *failure;
    if (!spank_remote(spank) || spank_get_item(spank, S_JOB_STEPID, &step) ||
        spank_get_item(spank, S_JOB_ENV, &variables) || !variables)
        return ESPANK_SUCCESS;
    errno = ENOMEM;
    char *ranks = list_ranks(spank);
    if (ranks && !*ranks) {
        /* No task runs here. */
        free(ranks);
        return ESPANK_SUCCESS;
    }
    int input = write_environment(variables);
    if (ranks && input >= 0) {
        snprintf(step_text, sizeof step_text, "%u", step);
        /* Those of slurmd, not of the user. */
        format_variable(path, sizeof path, "PATH");
        format_variable(configuration, sizeof configuration, "SLURM_CONF");
        format_variable(node, sizeof node, "SLURMD_NODENAME");
        char *arguments[] = {PROGRAM, "--step", step_text, ranks, NULL};
        char *environment[] = {path, configuration, node, "LC_ALL=C.UTF-8", NULL};
        failure = run_program(input, arguments, environment);
        if (!failure && !is_complete())
            failure = PROGRAM " failed";
    } else {
        failure = strerror(errno);
    }
    if (input >= 0)
        close(input);
    free(ranks);
    if (failure) {
        slurm_error(FAILURE "%s", failure);
        records_size = 0;
    } else if (*records == '!') {
        slurm_error(FAILURE "%s", records + 1);
        records_size = 0;
    } else if (records_size == sizeof END) {
        /* The program leaves this step alone. */
        records_size = 0;
    }
    return ESPANK_SUCCESS;
}

/* In the process of a task, as the user. */
int slurm_spank_task_init(spank_t spank, int count, char **words) {
    (void)count;
    (void)words;
    char rank[16] = "", section[20];
    int applies = 0, is_known = 0;
    if (!records_size)
        return ESPANK_SUCCESS;
    spank_getenv(spank, "SLURM_PROCID", rank, sizeof rank);
    snprintf(section, sizeof section, "@%s", rank);
    for (char *record = records; record < records + records_size; record += strlen(record) + 1) {
        if (*record == '@') {
            is_known |= !strcmp(record, section);
            applies = !strcmp(record, section) || !strcmp(record, "@all");
            continue;
        }
        if (!applies)
            continue;
        char *value = strchr(record, '=');
        if (!value) {
            spank_unsetenv(spank, record);
            continue;
        }
        *value = '\0';
        if (spank_setenv(spank, record, value + 1, 1))
            slurm_error("gpumesh: %s is not set", record);
        *value = '=';
    }
    if (!is_known)
        slurm_error(FAILURE "there is no task %s", rank);
    return ESPANK_SUCCESS;
}
