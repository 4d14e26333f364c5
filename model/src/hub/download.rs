//! Downloads what is missing of a model into the cache.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::repository::{HFRepository, RepoTreeEntry, RepoTypeModel};
use hf_hub::{HFClient, HFError, split_id};
use tokio::sync::mpsc;

use super::{HubError, HubSettings, Transfer};

/// Endings of the names of files a model is loaded from.
const WANTED: [&str; 3] = [".json", ".jinja", ".safetensors"];

/// A file of a model, as the hub lists it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    size: u64,
}

/// The directory of `id` at `revision`, downloaded as far as needed.
pub(super) fn fetch(
    id: &str,
    revision: &str,
    settings: &HubSettings,
    progress: &mut (dyn FnMut(Transfer) + Send),
) -> Result<PathBuf, HubError> {
    let failed = |reason: String| HubError::Failed { id: id.to_owned(), reason };
    let job = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let job = Job::new(id, revision, settings)?;
        let result = runtime.block_on(job.run(settings, progress));
        // Dropping the runtime would wait for a thread that waits for another program's lock on the
        // cache.
        runtime.shutdown_background();
        result
    };
    // A thread of its own, because the caller's may already be driving a runtime.
    std::thread::scope(|scope| match scope.spawn(job).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

struct Job<'a> {
    id: &'a str,
    revision: &'a str,
    endpoint: String,
    cache: PathBuf,
    repository: HFRepository<RepoTypeModel>,
}

impl<'a> Job<'a> {
    fn new(id: &'a str, revision: &'a str, settings: &HubSettings) -> Result<Job<'a>, HubError> {
        let mut builder =
            HFClient::builder().endpoint(&settings.endpoint).retry_max_attempts(settings.attempts);
        if let Some(token) = &settings.token {
            builder = builder.token(token);
        }
        if let Some(cache) = &settings.cache {
            builder = builder.cache_dir(cache);
        }
        let endpoint = &settings.endpoint;
        let client = builder.build().map_err(|error| match error {
            HFError::Url(error) => {
                HubError::Unreachable { endpoint: endpoint.clone(), reason: error.to_string() }
            }
            error => HubError::of(error, endpoint, id, revision),
        })?;
        let (organisation, name) = split_id(id);
        Ok(Job {
            id,
            revision,
            endpoint: client.endpoint().to_owned(),
            cache: client.cache_dir().to_owned(),
            repository: client.model(organisation, name),
        })
    }

    async fn run(
        &self,
        settings: &HubSettings,
        progress: &mut (dyn FnMut(Transfer) + Send),
    ) -> Result<PathBuf, HubError> {
        if settings.offline {
            return self.cached().await;
        }
        let (sender, mut events) = mpsc::unbounded_channel();
        let mut download = std::pin::pin!(self.download(Forward(sender)));
        let mut account = Account::default();
        let mut deadline = std::pin::pin!(tokio::time::sleep(settings.patience));
        loop {
            tokio::select! {
                Some(event) = events.recv() => {
                    if account.enter(&event) {
                        progress(account.transfer);
                        deadline.as_mut().reset(tokio::time::Instant::now() + settings.patience);
                    }
                }
                result = &mut download => {
                    while let Ok(event) = events.try_recv() {
                        account.enter(&event);
                    }
                    progress(account.transfer);
                    return result;
                }
                () = &mut deadline => {
                    return Err(HubError::Stalled {
                        endpoint: self.endpoint.clone(),
                        id: self.id.to_owned(),
                        patience: settings.patience,
                    });
                }
            }
        }
    }

    async fn cached(&self) -> Result<PathBuf, HubError> {
        let found = self
            .repository
            .snapshot_download()
            .revision(self.revision)
            .local_files_only(true)
            .send()
            .await;
        found.map_err(|error| match error {
            HFError::LocalEntryNotFound { .. } => HubError::NotCached {
                id: self.id.to_owned(),
                revision: self.revision.to_owned(),
                cache: self.cache.clone(),
            },
            error => self.error(error),
        })
    }

    async fn download(&self, forward: Forward) -> Result<PathBuf, HubError> {
        let wanted = wanted(self.list().await?);
        let lacks = |what| HubError::NoCheckpoint {
            id: self.id.to_owned(),
            revision: self.revision.to_owned(),
            what,
        };
        if !wanted.iter().any(|file| file.name == "config.json") {
            return Err(lacks("config.json"));
        }
        if !wanted.iter().any(|file| file.name.ends_with(".safetensors")) {
            return Err(lacks("safetensors files"));
        }
        let directory = self
            .repository
            .snapshot_download()
            .revision(self.revision)
            .allow_patterns(wanted.iter().map(|file| file.name.clone()).collect())
            .progress(forward)
            .send()
            .await
            .map_err(|error| self.error(error))?;
        for file in &wanted {
            self.check_size(&directory, file)?;
        }
        Ok(directory)
    }

    /// The files at the root of the model.
    async fn list(&self) -> Result<Vec<Listed>, HubError> {
        use futures_util::TryStreamExt;
        let entries: Vec<RepoTreeEntry> = self
            .repository
            .list_tree()
            .revision(self.revision)
            .send()
            .map_err(|error| self.error(error))?
            .try_collect()
            .await
            .map_err(|error| self.error(error))?;
        let files = entries.into_iter().filter_map(|entry| match entry {
            RepoTreeEntry::File { path, size, .. } => Some(Listed { name: path, size }),
            RepoTreeEntry::Directory { .. } => None,
        });
        Ok(files.collect())
    }

    /// Holds a file against the listing. One that differs is removed, or it would be taken for whole
    /// the next time.
    fn check_size(&self, directory: &Path, file: &Listed) -> Result<(), HubError> {
        let path = directory.join(&file.name);
        let found = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        if found == file.size {
            return Ok(());
        }
        if let Ok(blob) = path.canonicalize() {
            let removed = std::fs::remove_file(&blob).and_then(|()| match path.is_symlink() {
                true => std::fs::remove_file(&path),
                false => Ok(()),
            });
            if let Err(error) = removed {
                tracing::warn!(file = %blob.display(), %error, "cannot remove damaged download");
            }
        }
        Err(HubError::Size {
            id: self.id.to_owned(),
            file: file.name.clone(),
            found,
            stated: file.size,
        })
    }

    fn error(&self, error: HFError) -> HubError {
        HubError::of(error, &self.endpoint, self.id, self.revision)
    }
}

/// The files to take: those at the root, by their endings, with names that mean only themselves as
/// a pattern and as a path.
fn wanted(mut files: Vec<Listed>) -> Vec<Listed> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    files.retain(|file| {
        !file.name.starts_with('.')
            && file.name.chars().all(plain)
            && WANTED.iter().any(|ending| file.name.ends_with(ending))
    });
    files
}

/// Passes what the download reports on to the loop that waits for it.
struct Forward(mpsc::UnboundedSender<DownloadEvent>);

impl ProgressHandler for Forward {
    fn on_progress(&self, event: &ProgressEvent) {
        if let ProgressEvent::Download(event) = event {
            // The receiver outlives the download; after a stall nobody listens any more.
            let _ = self.0.send(event.clone());
        }
    }
}

/// Adds events up.
#[derive(Default)]
struct Account {
    files: HashMap<String, u64>,
    batch: u64,
    transfer: Transfer,
}

impl Account {
    /// Enters an event; whether it brought anything new.
    fn enter(&mut self, event: &DownloadEvent) -> bool {
        let before = self.transfer;
        match event {
            // The download of a single file of many starts too; the first start tells of all.
            DownloadEvent::Start { total_bytes, .. } => {
                self.transfer.total = self.transfer.total.max(*total_bytes);
            }
            DownloadEvent::Progress { files } => {
                for file in files {
                    self.files.insert(file.filename.clone(), file.bytes_completed);
                }
            }
            DownloadEvent::AggregateProgress { bytes_completed, .. } => {
                self.batch = self.batch.max(*bytes_completed);
            }
            DownloadEvent::Complete => {}
        }
        self.transfer.done = self.files.values().sum::<u64>() + self.batch;
        self.transfer != before
    }
}
