/*
 * Copyright (c) 2026, the gpumesh authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Lets the tasks of a session's job begin in the network namespace that gpumesh-session has made for them, and has
 * gpumesh-session make and remove it: Slurm calls the plugin as root before a job starts on a node, for each task, and after
 * the job has ended. A task gets a namespace of its own job alone, by Slurm's number of it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(gpumesh_session, 1)

#define PROGRAM "/usr/local/bin/gpumesh-session"
#define FOLDER "/run/gpumesh/session"
/* What the submitting program says about its job. */
#define TOKEN "GPUMESH_SESSION"
/* Which of the containers on its nodes a step is about: a number, or "host" for none. */
#define PLACE "GPUMESH_SESSION_PLACE"
/* Above are the batch, extern and interactive steps. */
#define LAST_STEP 0xfffffff0u
#define ATTEMPTS 3

/* Runs the program, and again if somebody has killed it: it finishes what it finds half done. A job must not fail for it,
 * or Slurm would take the node out of service; a task that finds no namespace does not start. */
static void run_program(const char *verb) {
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int status = 0;
        pid_t child = fork();
        if (child < 0) {
            slurm_error("gpumesh_session: cannot fork: %s", strerror(errno));
            return;
        }
        if (child == 0) {
            execl(PROGRAM, PROGRAM, verb, (char *)NULL);
            _exit(127);
        }
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
        }
        if (!WIFSIGNALED(status))
            return;
        slurm_error("gpumesh_session: %s %s was killed by signal %d", PROGRAM, verb, WTERMSIG(status));
    }
}

/* On the host that submits: the prolog and the epilog of the job are told the token. When slurmd starts, also after a boot:
 * what is left of jobs that have ended meanwhile is looked after. */
int slurm_spank_init(spank_t spank, int count, char **words) {
    (void)count;
    (void)words;
    spank_context_t context = spank_context();
    const char *token = getenv(TOKEN);
    if (token && (context == S_CTX_ALLOCATOR || context == S_CTX_LOCAL))
        spank_job_control_setenv(spank, TOKEN, token, 1);
    if (context == S_CTX_SLURMD)
        run_program("guard");
    return ESPANK_SUCCESS;
}

int slurm_spank_job_prolog(spank_t spank, int count, char **words) {
    (void)spank;
    (void)count;
    (void)words;
    if (getenv("SPANK_" TOKEN))
        run_program("prolog");
    return ESPANK_SUCCESS;
}

int slurm_spank_job_epilog(spank_t spank, int count, char **words) {
    (void)spank;
    (void)count;
    (void)words;
    if (getenv("SPANK_" TOKEN))
        run_program("epilog");
    return ESPANK_SUCCESS;
}

/* The task does not begin. Where Slurm has the plugin as an optional one, an error of it would be no reason. */
static void refuse_task(void) {
    fflush(NULL);
    _exit(1);
}

/* In the process of a task, still as root. */
int slurm_spank_task_init_privileged(spank_t spank, int count, char **words) {
    (void)count;
    (void)words;
    uint32_t job = 0, step = 0;
    char path[128], place[16] = "";
    if (!spank_remote(spank) || spank_get_item(spank, S_JOB_ID, &job) || spank_get_item(spank, S_JOB_STEPID, &step))
        return ESPANK_SUCCESS;
    if (step >= LAST_STEP)
        return ESPANK_SUCCESS;
    snprintf(path, sizeof path, FOLDER "/%u/private", job);
    if (access(path, F_OK))
        return ESPANK_SUCCESS;
    if (spank_getenv(spank, PLACE, place, sizeof place) != ESPANK_SUCCESS || !*place) {
        slurm_error("gpumesh_session: the step does not say which container it is about: use gpumesh-session enter");
        refuse_task();
    }
    if (!strcmp(place, "host"))
        return ESPANK_SUCCESS;
    if (strspn(place, "0123456789") != strlen(place) || strlen(place) > 3) {
        slurm_error("gpumesh_session: " PLACE " is '%s'", place);
        refuse_task();
    }
    snprintf(path, sizeof path, "/run/netns/gms%u.%d", job, atoi(place));
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET)) {
        slurm_error("gpumesh_session: job %u cannot enter %s: %s", job, path, strerror(errno));
        refuse_task();
    }
    close(space);
    return ESPANK_SUCCESS;
}
