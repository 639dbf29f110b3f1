/* Runs the plugin as slurmstepd does, with its own environment as that of the step, for two tasks: "slurmstepd STEP RANK RANK".
 * Prints what the plugin changes in each task. The effective user is STEP_UID, if that is set. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include PLUGIN

extern char **environ;
static uint32_t step, ranks[2];
static const char *rank_text;

int spank_remote(spank_t spank) {
    return !spank;
}

spank_err_t spank_get_item(spank_t spank, enum spank_item item, ...) {
    (void)spank;
    va_list arguments;
    va_start(arguments, item);
    if (item == S_JOB_STEPID)
        *va_arg(arguments, uint32_t *) = step;
    if (item == S_JOB_ENV)
        *va_arg(arguments, char ***) = environ;
    if (item == S_JOB_LOCAL_TASK_COUNT)
        *va_arg(arguments, uint32_t *) = getenv("NO_TASKS") ? 0 : 2;
    if (item == S_JOB_LOCAL_TO_GLOBAL_ID) {
        uint32_t task = va_arg(arguments, uint32_t);
        *va_arg(arguments, uint32_t *) = ranks[task];
    }
    va_end(arguments);
    return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int size) {
    (void)spank;
    snprintf(value, (size_t)size, "%s", strcmp(name, "SLURM_PROCID") ? "" : rank_text);
    return ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite) {
    (void)spank;
    printf("%s: %s=%s%s\n", rank_text, name, value, overwrite ? "" : " unless set");
    return ESPANK_SUCCESS;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name) {
    (void)spank;
    printf("%s: unset %s\n", rank_text, name);
    return ESPANK_SUCCESS;
}

void slurm_error(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    printf("error: ");
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

int main(int count, char **words) {
    const char *user = getenv("STEP_UID");
    if (count != 4 || (user && (setegid((gid_t)atoi(user)) || seteuid((uid_t)atoi(user)))))
        return 1;
    step = (uint32_t)strtoul(words[1], NULL, 10);
    for (int task = 0; task < 2; task++)
        ranks[task] = (uint32_t)atoi(words[2 + task]);
    if (slurm_spank_user_init(NULL, 0, NULL))
        return 1;
    for (int task = 0; task < 2; task++) {
        rank_text = words[2 + task];
        if (slurm_spank_task_init(NULL, 0, NULL))
            return 1;
    }
    return 0;
}
