//! Several transfers at once.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Does `work` for each of `jobs`, at most `limit` at once, and returns the results in the order of the jobs. After the
/// first failure nothing more is begun; what runs is waited for.
///
/// # Errors
/// The failure that came first.
pub fn in_parallel<J: Sync, R: Send, E: Send>(
    jobs: &[J],
    limit: usize,
    work: impl Fn(&J) -> Result<R, E> + Sync,
) -> Result<Vec<R>, E> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let done = Mutex::new(Vec::with_capacity(jobs.len()));
    let lock = |failure: &Mutex<Option<E>>| {
        failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).is_some()
    };
    let worker = || {
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(position) else { return };
            if lock(&failure) {
                return;
            }
            match work(job) {
                Ok(result) => {
                    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((position, result));
                }
                Err(error) => {
                    failure.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert(error);
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..limit.min(jobs.len()) {
            // Where there may be no more threads, those that there are do it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, worker);
        }
        worker();
    });
    match failure.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        Some(error) => Err(error),
        None => {
            let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
            done.sort_by_key(|(position, _)| *position);
            Ok(done.into_iter().map(|(_, result)| result).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let jobs: Vec<u32> = (0..50).collect();
        for limit in [0, 1, 8, 100] {
            assert_eq!(in_parallel(&jobs, limit, |job| Ok::<_, ()>(job * 2)).unwrap()[49], 98);
        }
        assert!(in_parallel(&[], 4, |(): &()| Ok::<_, ()>(())).unwrap().is_empty());
    }

    #[test]
    fn nothing_is_begun_after_a_failure() {
        let begun = AtomicUsize::new(0);
        let result = in_parallel(&[0; 1000], 2, |_| {
            begun.fetch_add(1, Ordering::Relaxed);
            Err::<(), _>("no")
        });
        assert_eq!(result, Err("no"));
        assert!(begun.load(Ordering::Relaxed) <= 2);
    }
}
