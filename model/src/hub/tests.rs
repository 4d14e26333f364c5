use std::path::Path;

use super::stub::{COMMIT, Hub, Manner};
use super::*;
use crate::Checkpoint;

/// The demo model as a repository, with files nobody needs.
fn serve(manner: Manner) -> Hub {
    let weights: &[u8] = crate::demo::WEIGHTS;
    let small = |name| crate::demo::file(name).unwrap();
    Hub::serve(
        &[
            ("config.json", small("config.json")),
            ("generation_config.json", small("generation_config.json")),
            ("tokenizer.json", small("tokenizer.json")),
            ("model.safetensors", weights),
            ("README.md", b"# A model"),
            ("onnx/config.json", b"{}"),
            ("pytorch_model.bin", b"pickle"),
        ],
        manner,
    )
}

fn settings(hub: &Hub, cache: &Path) -> HubSettings {
    HubSettings {
        endpoint: hub.endpoint(),
        token: Some("wrong".to_owned()),
        cache: Some(cache.to_owned()),
        attempts: 2,
        ..HubSettings::default()
    }
}

fn get(settings: &HubSettings) -> Result<(PathBuf, Vec<Transfer>), HubError> {
    let mut heard = Vec::new();
    let path = resolve("org/model", settings, &mut |transfer| heard.push(transfer))?;
    Ok((path, heard))
}

fn refusal(settings: &HubSettings) -> String {
    let message = get(settings).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message.replace(&settings.endpoint, "HUB")
}

#[test]
fn a_model_is_downloaded_once_and_loads() {
    let (hub, cache) = (serve(Manner::Good), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let (path, heard) = get(&settings).unwrap();
    assert_eq!(path, cache.path().join("models--org--model/snapshots").join(COMMIT));
    assert_eq!(Checkpoint::open(&path).unwrap().config(), Checkpoint::demo().unwrap().config());

    // Nothing but what is needed.
    let mut names: Vec<_> =
        std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let expected = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];
    assert_eq!(names, expected);

    // Progress rises to the size of all of it.
    let total: u64 = expected.iter().map(|name| path.join(name).metadata().unwrap().len()).sum();
    assert_eq!(heard.last(), Some(&Transfer { done: total, total }));
    assert!(heard.windows(2).all(|pair| pair[0].done <= pair[1].done), "{heard:?}");
    assert!(heard.len() > 10, "{heard:?}");

    // The second time only asks whether anything is new.
    let before = hub.asked("GET /org/model/resolve/");
    assert_eq!(before, 4);
    assert_eq!(get(&settings).unwrap().0, path);
    assert_eq!(hub.asked("GET /org/model/resolve/"), before);
}

#[test]
fn offline_takes_the_cache_or_says_that_it_is_empty() {
    let (hub, cache) = (serve(Manner::Good), tempfile::tempdir().unwrap());
    let online = settings(&hub, cache.path());
    let offline = HubSettings { offline: true, ..online.clone() };
    assert_eq!(
        refusal(&offline),
        format!(
            "org/model@main is not in the cache at {}, and HF_HUB_OFFLINE forbids to download it",
            cache.path().display()
        )
    );
    let path = get(&online).unwrap().0;
    let before = hub.asked("");
    assert_eq!(get(&offline).unwrap().0, path);
    assert_eq!(hub.asked(""), before, "asked the hub while offline");
}

#[test]
fn a_revision_is_a_branch_or_a_commit() {
    let (hub, cache) = (serve(Manner::Good), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let path = resolve(&format!("org/model@{COMMIT}"), &settings, &mut |_| {}).unwrap();
    assert!(path.ends_with(COMMIT));
    let absent = resolve("org/model@v2", &settings, &mut |_| {}).unwrap_err().to_string();
    assert_eq!(absent, format!("{} has no model org/model with a revision v2", hub.endpoint()));
}

#[test]
fn a_private_model_wants_the_token() {
    let (hub, cache) = (serve(Manner::Private), tempfile::tempdir().unwrap());
    let stranger = settings(&hub, cache.path());
    assert_eq!(
        refusal(&stranger),
        "HUB does not show org/model without a token: if it exists, it is private or gated; set \
         HF_TOKEN to a token that may read it"
    );
    let friend = HubSettings { token: Some("secret".to_owned()), ..stranger };
    assert!(get(&friend).is_ok());
    hub.behave(Manner::Status(403));
    let other = tempfile::tempdir().unwrap();
    assert_eq!(
        refusal(&HubSettings { cache: Some(other.path().to_owned()), ..friend }),
        "HUB refuses org/model to this token: accept its terms at HUB/org/model, or check HF_TOKEN"
    );
}

#[test]
fn what_the_hub_does_not_have_is_said_plainly() {
    let cache = tempfile::tempdir().unwrap();
    let hub = serve(Manner::Good);
    let settings_of = |hub: &Hub| settings(hub, cache.path());
    let unknown = resolve("org/other", &settings_of(&hub), &mut |_| {}).unwrap_err().to_string();
    assert_eq!(unknown, format!("{} has no model org/other with a revision main", hub.endpoint()));

    let pickled = Hub::serve(&[("config.json", b"{}"), ("pytorch_model.bin", b"x")], Manner::Good);
    assert_eq!(
        refusal(&settings_of(&pickled)),
        "org/model@main has no safetensors files: it is no checkpoint this program can load"
    );
    assert_eq!(pickled.asked("resolve"), 0, "downloaded before looking");
    let empty = Hub::serve(&[("README.md", b"")], Manner::Good);
    assert!(refusal(&settings_of(&empty)).contains("has no config.json"));
}

#[test]
fn a_hub_that_is_not_there_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let hub = serve(Manner::Good);
    let gone = settings(&hub, cache.path());
    drop(hub);
    let message = refusal(&gone);
    assert!(message.starts_with("cannot reach HUB: Connection refused"), "{message}");
    assert!(message.ends_with("HF_HUB_OFFLINE=1 uses the cache alone"), "{message}");
    let nonsense = HubSettings { endpoint: "no url".to_owned(), ..gone };
    assert!(refusal(&nonsense).starts_with("cannot reach HUB: relative URL"), "{nonsense:?}");
}

#[test]
fn an_error_page_in_place_of_weights_does_not_stay_in_the_cache() {
    let (hub, cache) = (serve(Manner::ErrorPage), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let message = refusal(&settings);
    let stated = crate::demo::WEIGHTS.len();
    assert_eq!(
        message,
        format!(
            "model.safetensors of org/model has 18 bytes, but the hub states {stated}; run it again \
             to fetch it anew"
        )
    );
    hub.behave(Manner::Good);
    assert!(Checkpoint::open(&get(&settings).unwrap().0).is_ok());
}

#[test]
fn a_hub_that_falls_silent_is_not_waited_for() {
    let (hub, cache) = (serve(Manner::Silent), tempfile::tempdir().unwrap());
    let settings =
        HubSettings { patience: Duration::from_millis(300), ..settings(&hub, cache.path()) };
    assert_eq!(
        refusal(&settings),
        "HUB has sent nothing of org/model for 0.3 s; run it again to go on"
    );
}

#[test]
fn it_can_be_called_inside_a_runtime() {
    let (hub, cache) = (serve(Manner::Good), tempfile::tempdir().unwrap());
    let settings = settings(&hub, cache.path());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(async { get(&settings) }).is_ok());
}

#[test]
fn a_directory_is_taken_as_it_is() {
    let nowhere = HubSettings { endpoint: "http://127.0.0.1:1".to_owned(), ..Default::default() };
    let directory = tempfile::tempdir().unwrap();
    let path = resolve(directory.path().to_str().unwrap(), &nowhere, &mut |_| {}).unwrap();
    assert_eq!(path, directory.path());
}

#[test]
fn the_environment_is_read_as_the_other_tools_read_it() {
    let read = |pairs: &[(&str, &str)]| {
        HubSettings::from_variables(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    };
    let none = read(&[]);
    assert_eq!(none.endpoint, "https://huggingface.co");
    assert!(none.token.is_none() && none.cache.is_none() && !none.offline);
    assert_eq!(read(&[("HF_ENDPOINT", "")]).endpoint, none.endpoint);
    let all = read(&[
        ("HF_HOME", "/home/hf"),
        ("HF_TOKEN", "t"),
        ("HF_ENDPOINT", "http://mirror"),
        ("HF_HUB_OFFLINE", "1"),
    ]);
    assert_eq!(all.cache.as_deref(), Some(Path::new("/home/hf/hub")));
    assert_eq!((all.endpoint.as_str(), all.token.as_deref()), ("http://mirror", Some("t")));
    assert!(all.offline);
    let cache = read(&[("HF_HOME", "/home/hf"), ("HF_HUB_CACHE", "/cache")]).cache;
    assert_eq!(cache.as_deref(), Some(Path::new("/cache")));
    for (value, offline) in [("TRUE", true), ("yes", true), ("on", true), ("0", false), ("", false)]
    {
        assert_eq!(read(&[("HF_HUB_OFFLINE", value)]).offline, offline, "{value:?}");
    }
}
