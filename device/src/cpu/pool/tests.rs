use super::*;

#[test]
fn every_task_runs_once() {
    for threads in [1, 2, 5] {
        let pool = Pool::new(threads, None).unwrap();
        assert_eq!(pool.threads(), threads);
        for tasks in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|i| {
                counts[i].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn many_short_jobs_neither_hang_nor_lose_tasks() {
    for threads in [2, 4] {
        let pool = Pool::new(threads, None).unwrap();
        let sum = AtomicUsize::new(0);
        for _ in 0..20_000 {
            pool.run(4, &|i| {
                sum.fetch_add(i + 1, Ordering::Relaxed);
            });
        }
        assert_eq!(sum.into_inner(), 20_000 * 10);
    }
}

#[test]
fn workers_take_part() {
    let pool = Pool::new(2, None).unwrap();
    let here = std::thread::current().id();
    let (started, wait) = (AtomicBool::new(false), AtomicBool::new(true));
    pool.run(2, &|_| {
        if std::thread::current().id() == here {
            // Hold this task until the other thread has the other one.
            while !started.load(Ordering::SeqCst) && wait.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
        } else {
            started.store(true, Ordering::SeqCst);
        }
    });
    assert!(started.into_inner());
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
    let pool = Pool::new(3, None).unwrap();
    for bad in [0, 50, 99] {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|i| assert_ne!(i, bad, "planted"));
        }));
        let payload = outcome.unwrap_err();
        assert!(payload.downcast_ref::<String>().unwrap().contains("planted"));
        let count = AtomicUsize::new(0);
        pool.run(100, &|_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 100);
    }
}

#[test]
fn a_run_inside_a_task_and_one_from_another_thread_finish() {
    let pool = Pool::new(2, None).unwrap();
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..100 {
                    pool.run(3, &|_| {
                        pool.run(5, &|_| {
                            count.fetch_add(1, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 2 * 100 * 15);
}

#[test]
fn bad_thread_counts_and_cpus_are_refused_by_name() {
    let refused = |threads, cpus| Pool::new(threads, cpus).err().unwrap().to_string();
    assert!(refused(0, None).contains("0 threads"));
    assert!(refused(usize::MAX, None).contains("threads"));
    assert!(refused(2, Some(vec![0])).contains("1 cpus [0] given for 2 threads"));
    // One past what any kernel is built for, and one that a CPU set cannot even name.
    for cpu in [1023, usize::MAX] {
        assert!(refused(1, Some(vec![cpu])).contains(&format!("cpu {cpu} is not available")));
    }
}

#[test]
fn threads_run_where_they_are_pinned() {
    let allowed = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus: Vec<usize> =
        (0..CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap()).take(2).collect();
    let pool = Pool::new(cpus.len(), Some(cpus.clone())).unwrap();
    let seen = Mutex::new(std::collections::BTreeSet::new());
    for _ in 0..1000 {
        pool.run(8, &|_| {
            let set = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
            let pinned: Vec<usize> =
                (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap()).collect();
            assert_eq!(pinned.len(), 1);
            seen.lock().unwrap().insert(pinned[0]);
        });
    }
    let seen: Vec<usize> = seen.into_inner().unwrap().into_iter().collect();
    assert!(seen.contains(&cpus[0]) && seen.iter().all(|cpu| cpus.contains(cpu)), "{seen:?}");
}
