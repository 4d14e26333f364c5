//! Every method of the control plane, called as a program would that has never heard of it: it learns
//! services, methods and messages by reflection, as grpcurl does, and writes its requests as text.

use std::collections::BTreeSet;
use std::str::FromStr;

use pocket_tests::wait::PATIENCE;
use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use tokio::runtime::{Builder, Runtime};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1alpha;
use tonic_reflection::pb::v1alpha::{
    server_reflection_client as v1alpha_client, server_reflection_request as v1alpha_request,
    server_reflection_response as v1alpha_response,
};

use crate::control::{Place, begun, endless, two_ranks};
use crate::control_access::{control_address, written};
use crate::tls::Authority;

const TOKEN: &str = "not-so-secret-token";

/// Messages of a type that is known only now.
#[derive(Clone)]
struct Dynamic(MessageDescriptor);

impl Codec for Dynamic {
    type Encode = DynamicMessage;
    type Decode = DynamicMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        self.clone()
    }

    fn decoder(&mut self) -> Self {
        self.clone()
    }
}

impl Encoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn encode(
        &mut self,
        message: DynamicMessage,
        buffer: &mut EncodeBuf<'_>,
    ) -> Result<(), Status> {
        message.encode(buffer).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Decoder for Dynamic {
    type Item = DynamicMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<DynamicMessage>, Status> {
        let message = DynamicMessage::decode(self.0.clone(), buffer);
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

/// A client that knows what reflection has told it.
struct Caller {
    runtime: Runtime,
    channel: Channel,
    token: Option<&'static str>,
}

impl Caller {
    /// Connects when it calls.
    fn new(endpoint: Endpoint, token: Option<&'static str>) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let channel = {
            let _inside = runtime.enter();
            endpoint.connect_lazy()
        };
        Self { runtime, channel, token }
    }

    fn at_socket(place: &Place) -> Self {
        let url = format!("unix:{}", place.socket().display());
        Self::new(Endpoint::from_shared(url).unwrap(), None)
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(PATIENCE);
        if let Some(token) = self.token {
            let header = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", header);
        }
        request
    }

    fn reflect(&self, asked: MessageRequest) -> MessageResponse {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(asked) };
        let requests = futures_util::stream::iter([request]);
        self.runtime.block_on(async {
            let mut client = ServerReflectionClient::new(self.channel.clone());
            let reply = client.server_reflection_info(self.request(requests)).await.unwrap();
            let reply = reply.into_inner().message().await.unwrap().unwrap();
            reply.message_response.unwrap()
        })
    }

    /// The services, by the reflection of before it had a version 1.
    fn reflect_as_before(&self) -> Vec<String> {
        let request = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(v1alpha_request::MessageRequest::ListServices(String::new())),
        };
        let requests = futures_util::stream::iter([request]);
        let reply = self.runtime.block_on(async {
            let mut client = v1alpha_client::ServerReflectionClient::new(self.channel.clone());
            let reply = client.server_reflection_info(self.request(requests)).await.unwrap();
            reply.into_inner().message().await.unwrap().unwrap()
        });
        let Some(v1alpha_response::MessageResponse::ListServicesResponse(listed)) =
            reply.message_response
        else {
            panic!("{reply:?}")
        };
        listed.service.into_iter().map(|service| service.name).collect()
    }

    /// All methods of all services.
    fn methods(&self) -> Vec<MethodDescriptor> {
        let listed = self.reflect(MessageRequest::ListServices(String::new()));
        let MessageResponse::ListServicesResponse(listed) = listed else { panic!("{listed:?}") };
        let names: Vec<String> = listed.service.into_iter().map(|service| service.name).collect();
        let mut pool = DescriptorPool::new();
        for name in &names {
            let files = self.reflect(MessageRequest::FileContainingSymbol(name.clone()));
            let MessageResponse::FileDescriptorResponse(files) = files else { panic!("{files:?}") };
            for file in files.file_descriptor_proto {
                pool.decode_file_descriptor_proto(file.as_slice()).unwrap();
            }
        }
        let service = |name: &String| pool.get_service_by_name(name).unwrap();
        names
            .iter()
            .map(service)
            .flat_map(|service| service.methods().collect::<Vec<_>>())
            .collect()
    }

    /// Calls a method with a message in text form; gives the answers in text form, of one that never
    /// ends the first. On the wire all kinds of methods look the same.
    fn call(
        &self,
        method: &MethodDescriptor,
        message: &str,
        endless: bool,
    ) -> Result<Vec<String>, Status> {
        let message = DynamicMessage::parse_text_format(method.input(), message).unwrap();
        let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
        let path = PathAndQuery::from_str(&path).unwrap();
        self.runtime.block_on(async {
            let mut client = tonic::client::Grpc::new(self.channel.clone());
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let request = self.request(futures_util::stream::iter([message]));
            let codec = Dynamic(method.output());
            let mut answers = client.streaming(request, path, codec).await?.into_inner();
            let mut texts = Vec::new();
            while let Some(answer) = answers.message().await? {
                texts.push(answer.to_text_format());
                if endless {
                    break;
                }
            }
            Ok(texts)
        })
    }
}

/// A call: method, request, and a part of the answer.
type Call = (&'static str, &'static str, &'static str);

/// Every method at least once, in an order in which they can be called.
const CALLS: &[Call] = &[
    (
        "grpc.reflection.v1.ServerReflection.ServerReflectionInfo",
        "list_services: ''",
        "pocket.control",
    ),
    ("grpc.health.v1.Health.Check", "", "SERVING"),
    ("grpc.health.v1.Health.Watch", "", "SERVING"),
    ("pocket.control.v1.Control.GetStatus", "", "\"ready\""),
    ("pocket.control.v1.Control.WatchStatus", "interval_s: 0.5", "\"ready\""),
    ("pocket.control.v1.Control.Profile", "action: START limit_s: 120", "limit_s"),
    ("pocket.control.v1.Control.ListRequests", "", "cmpl-"),
    ("pocket.control.v1.Control.CancelRequest", "name: 'victim'", "cancelled"),
    ("pocket.control.v1.Control.Profile", "action: STOP trace: true", "traceEvents"),
    (
        "pocket.control.v1.Control.SetFlag",
        "name: 'POCKET_ASCEND_IPC_ALLREDUCE_STATS' value: '1'",
        "",
    ),
    ("pocket.control.v1.Control.ListFlags", "", "POCKET_PHASE_PROFILE"),
    ("pocket.control.v1.Control.SetLogFilter", "filter: 'warn'", "info"),
    ("pocket.control.v1.Control.GetConfig", "", "control_socket"),
    ("pocket.control.v1.Control.Drain", "", ""),
    ("pocket.control.v1.Control.Resume", "", ""),
    ("pocket.control.v1.Control.RestartRank", "rank: 0", ""),
    ("pocket.control.v1.Control.Shutdown", "limit_s: 5", "5"),
];

/// Whether a method answers for ever.
fn is_endless(method: &MethodDescriptor) -> bool {
    ["Watch", "WatchStatus", "ServerReflectionInfo"].contains(&method.name())
}

#[test]
fn an_outside_client_reaches_every_method_there_is() {
    let (place, (_model, options)) = (Place::new(), endless());
    let daemon = place.steers(options).start().unwrap();
    let client = daemon.client();
    let stream = begun(&client, 8000);
    let caller = Caller::at_socket(&place);
    let methods = caller.methods();
    let there: BTreeSet<&str> = methods.iter().map(MethodDescriptor::full_name).collect();
    let called: BTreeSet<&str> = CALLS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(there, called, "every method has a call in the table, and nothing else has");
    // The older reflection, which the newer does not tell of; grpcurl and others still ask for it.
    let older = caller.reflect_as_before();
    assert!(older.iter().any(|name| name == "pocket.control.v1.Control"), "{older:?}");
    for (name, message, part) in CALLS {
        // The daemon's own name for the only request there is.
        let victim = place.asked(&["requests"]);
        let victim = victim[0]["id"].as_str().unwrap_or("victim").to_owned();
        let method = methods.iter().find(|method| method.full_name() == *name).unwrap();
        let message = message.replace("victim", &victim);
        let answers = caller.call(method, &message, is_endless(method));
        let answers = answers.unwrap_or_else(|status| panic!("{name}: {status}"));
        assert!(!answers.is_empty(), "{name}");
        assert!(answers.iter().any(|answer| answer.contains(part)), "{name}: {answers:?}");
    }
    drop(stream);
    assert_eq!(daemon.finish(PATIENCE).unwrap().status.code(), Some(0));
}

/// An empty message for every method: who may not ask is refused before it is read.
fn refusals(caller: &Caller, methods: &[MethodDescriptor]) -> Vec<(String, Status)> {
    let refused = |method: &MethodDescriptor| {
        let answer = caller.call(method, "", true);
        let refusal = answer.err().unwrap_or_else(|| panic!("{} was granted", method.full_name()));
        (method.full_name().to_owned(), refusal)
    };
    methods.iter().map(refused).collect()
}

#[test]
fn without_the_right_token_no_method_answers() {
    let folder = tempfile::tempdir().unwrap();
    let token = written(folder.path(), "token", TOKEN);
    let options = two_ranks().args(["--control-address", "127.0.0.1:0"]);
    let daemon = options.args(["--control-token-file", &token]).start().unwrap();
    let url = format!("http://{}", control_address(&daemon));
    let caller = |token| Caller::new(Endpoint::from_shared(url.clone()).unwrap(), token);
    let methods = caller(Some(TOKEN)).methods();
    assert!(methods.len() >= 16, "{}", methods.len());
    for token in [None, Some(""), Some("not-so-secret-tokem"), Some("not-so-secret-token-and-more")]
    {
        for (name, refusal) in refusals(&caller(token), &methods) {
            assert_eq!(refusal.code(), Code::Unauthenticated, "{name} with {token:?}: {refusal}");
        }
    }
    // None of that has drained or ended it.
    let health = daemon.client().get("/health").unwrap();
    assert_eq!(health.json().unwrap()["state"], "ready");
    daemon.stop(PATIENCE).unwrap();
}

#[test]
fn without_a_certificate_no_method_answers() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| written(folder.path(), name, text);
    let (authority, other) = (Authority::new(), Authority::new());
    let (ca, other_ca) = (authority.pem(), other.pem());
    let (server, client) = (authority.issue("127.0.0.1"), authority.issue("operator"));
    // Of the same name, and signed by somebody else.
    let stranger = other.issue("operator");
    let [ca_file, cert, key] =
        [write("ca", &ca), write("cert", &server.0), write("key", &server.1)];
    let tls = ["--control-tls-cert", &cert, "--control-tls-key", &key];
    let options = two_ranks().args(["--control-address", "127.0.0.1:0"]).args(tls);
    let daemon = options.args(["--control-tls-client-ca", &ca_file]).start().unwrap();
    let url = format!("https://{}", control_address(&daemon));
    let caller = |ca: &str, own: Option<&(String, String)>| {
        let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        if let Some((cert, key)) = own {
            tls = tls.identity(Identity::from_pem(cert, key));
        }
        let endpoint = Endpoint::from_shared(url.clone()).unwrap();
        Caller::new(endpoint.tls_config(tls).unwrap(), None)
    };
    let methods = caller(&ca, Some(&client)).methods();
    assert!(methods.len() >= 16, "{}", methods.len());
    for (ca, own) in [(&ca, None), (&ca, Some(&stranger)), (&other_ca, Some(&client))] {
        // What matters is that none was granted; a handshake that fails has many words.
        assert_eq!(refusals(&caller(ca, own), &methods).len(), methods.len());
    }
    daemon.stop(PATIENCE).unwrap();
}
