/* The part of Slurm's spank.h that our plugin uses. */
typedef struct spank_handle *spank_t;
typedef int spank_err_t;
enum { ESPANK_SUCCESS, ESPANK_ERROR };
enum spank_item { S_JOB_STEPID, S_JOB_ENV, S_JOB_LOCAL_TASK_COUNT, S_JOB_LOCAL_TO_GLOBAL_ID };
#define SPANK_PLUGIN(name, version) const char plugin_name[] = #name;
int spank_remote(spank_t spank);
spank_err_t spank_get_item(spank_t spank, enum spank_item item, ...);
spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int size);
spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite);
spank_err_t spank_unsetenv(spank_t spank, const char *name);
void slurm_error(const char *format, ...);
int slurm_spank_user_init(spank_t spank, int count, char **words);
int slurm_spank_task_init(spank_t spank, int count, char **words);
