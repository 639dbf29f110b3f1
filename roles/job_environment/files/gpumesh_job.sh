# shellcheck shell=sh
# Written by gpumesh.cluster. Sets a job's environment in a login that is inside it: pam_slurm_adopt has put the shell
# into the job's control group, or the login has brought SLURM_JOB_ID along.
if [ -z "${GPUMESH_JOB_ENVIRONMENT-}" ] && [ -x /etc/gpumesh/task_prolog ]; then
    case "${SLURM_JOB_ID:+/job_0}$(cat /proc/self/cgroup 2>/dev/null)" in
        */job_[0-9]*) eval "$(/etc/gpumesh/task_prolog --login)" ;;
    esac
fi
