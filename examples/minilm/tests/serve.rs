//! The server over real sockets, with a small model of random weights: batches, a full queue, the end, bad requests, slow clients and those that
//! are gone. Where a test needs the engine to be busy, a gate holds its thread.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::folder::tokens_of;
use crate::common::http::{Client, answer, embed, metric, request};
use crate::common::served::{Gate, Model, Options, Server};
use serde_json::json;
use streamvm_minilm::server::Limits;

#[test]
fn texts_that_wait_while_the_engine_is_busy_share_batches() {
    let (model, gate) = (Model::new(), Gate::default());
    let server = Server::start(&model, Options::default(), gate.before(model.embed()));
    let first = server.ask(&["w4"]);
    gate.wait_for(1);
    let others = [server.ask(&["w5 w6", "w7"]), server.ask(&["w8 w9 w10"]), server.ask(&["w11", "w12 w13"])];
    server.wait_for("minilm_queue_texts", 5.0);
    gate.open();
    model.check(&["w4"], &first.join().expect("no panic"));
    let texts: [&[&str]; 3] = [&["w5 w6", "w7"], &["w8 w9 w10"], &["w11", "w12 w13"]];
    for (texts, other) in texts.iter().zip(others) {
        model.check(texts, &other.join().expect("no panic"));
    }
    // One alone, four together, and the one that is left.
    assert_eq!(server.metric("minilm_batch_texts_count"), 3.0);
    assert_eq!(server.metric("minilm_batch_texts_sum"), 6.0);
    assert_eq!(server.metric("minilm_batch_texts_bucket{le=\"1.0\"}"), 2.0);
    assert_eq!(server.metric("minilm_batch_texts_bucket{le=\"4.0\"}"), 3.0);
    assert_eq!(server.metric("minilm_texts_total"), 6.0);
    assert_eq!(server.metric("minilm_embed_request_seconds_count"), 4.0);
    assert_eq!(server.metric("minilm_queue_texts"), 0.0);
    server.stop();
    assert_eq!(server.end(), 0);
}

#[test]
fn a_text_waits_for_others_until_the_batch_is_full_or_the_time_is_over() {
    let model = Model::new();
    let long = Options { batch: 2, wait: Duration::from_secs(600), ..Options::default() };
    let server = Server::start(&model, long, model.embed());
    let first = server.ask(&["w4"]);
    let second = server.ask(&["w5 w6"]);
    model.check(&["w4"], &first.join().expect("no panic"));
    model.check(&["w5 w6"], &second.join().expect("no panic"));
    assert_eq!(server.metric("minilm_batch_texts_count"), 1.0);
    assert_eq!(server.metric("minilm_batch_texts_sum"), 2.0);
    server.stop();
    assert_eq!(server.end(), 0);

    let wait = Duration::from_millis(300);
    let server = Server::start(&model, Options { batch: 2, wait, ..Options::default() }, model.embed());
    let begin = Instant::now();
    model.check(&["w4"], &embed(server.address, &["w4"]));
    assert!(begin.elapsed() >= wait, "the text has waited {:?} only", begin.elapsed());
    server.stop();
    assert_eq!(server.end(), 0);
}

#[test]
fn a_full_queue_refuses_requests_and_loses_none_that_it_has_taken() {
    let (model, gate) = (Model::new(), Gate::default());
    let server = Server::start(&model, Options { queue: 3, ..Options::default() }, gate.before(model.embed()));
    let first = server.ask(&["w4"]);
    gate.wait_for(1);
    let second = server.ask(&["w5 w6", "w7"]);
    server.wait_for("minilm_queue_texts", 2.0);
    // All texts of a request find room, or none does.
    let refused = embed(server.address, &["w8", "w9"]);
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains("retry-after: 1"), "{refused:?}");
    assert_eq!(refused.error(), "the queue is full, 2 of at most 3 texts wait: try again later");
    let third = server.ask(&["w10"]);
    server.wait_for("minilm_queue_texts", 3.0);
    for _ in 0..20 {
        assert_eq!(embed(server.address, &["w11"]).status, 503);
    }
    // More than the queue can ever take.
    let refused = embed(server.address, &["w8"; 4]);
    assert_eq!(refused.status, 422);
    assert_eq!(refused.error(), "4 texts are more than the 3 of a request: send fewer");
    gate.open();
    model.check(&["w4"], &first.join().expect("no panic"));
    model.check(&["w5 w6", "w7"], &second.join().expect("no panic"));
    model.check(&["w10"], &third.join().expect("no panic"));
    model.check(&["w11", "w8", "w9"], &embed(server.address, &["w11", "w8", "w9"]));
    assert_eq!(server.metric("minilm_requests_total{status=\"503\"}"), 21.0);
    assert_eq!(server.metric("minilm_texts_total"), 7.0);
    server.stop();
    assert_eq!(server.end(), 0);
}

#[test]
fn a_server_that_drains_answers_what_has_arrived_and_takes_nothing_new() {
    let (model, gate) = (Model::new(), Gate::default());
    let server = Server::start(&model, Options::default(), gate.before(model.embed()));
    let (mut computed, mut queued) = (Client::connect(server.address), Client::connect(server.address));
    computed.ask(&["w4"]);
    gate.wait_for(1);
    queued.ask(&["w5", "w6 w7"]);
    server.wait_for("minilm_queue_texts", 2.0);
    let mut begun = Client::connect(server.address);
    let bytes = request("POST", "/embed", json!({"texts": ["w8 w9"]}).to_string().as_bytes());
    begun.send(&bytes[..bytes.len() - 5]).expect("sent");
    let mut idle = Client::connect(server.address);
    idle.send(&request("GET", "/health", b"")).expect("sent");
    assert_eq!(idle.answer().expect("an answer").status, 200);

    server.stop();
    assert!(idle.is_closed(), "a connection without a request is closed");
    let begin = Instant::now();
    while TcpStream::connect(server.address).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the server still takes connections");
        thread::sleep(Duration::from_millis(5));
    }
    begun.send(&bytes[bytes.len() - 5..]).expect("sent");
    gate.open();
    model.check(&["w4"], &computed.answer().expect("an answer"));
    model.check(&["w5", "w6 w7"], &queued.answer().expect("an answer"));
    model.check(&["w8 w9"], &begun.answer().expect("an answer"));
    assert!(computed.is_closed() && queued.is_closed() && begun.is_closed());
    assert_eq!(server.end(), 0);
}

#[test]
fn draining_ends_after_its_time_or_at_the_second_message() {
    let model = Model::new();
    for (drain, messages) in [(Duration::from_millis(100), 1), (Duration::from_secs(600), 2)] {
        let gate = Gate::default();
        let limits = Limits { drain, ..Limits::default() };
        let server = Server::start(&model, Options { limits, ..Options::default() }, gate.before(model.embed()));
        let mut client = Client::connect(server.address);
        client.ask(&["w4"]);
        gate.wait_for(1);
        (0..messages).for_each(|_| server.stop());
        assert!(client.is_closed(), "the connection ends with the server");
        gate.open();
        assert_eq!(server.end(), 1, "one connection was not over");
    }
}

#[test]
fn bad_requests_are_told_what_is_wrong() {
    let model = Model::new();
    let server = Server::start(&model, Options::default(), model.embed());
    let form = "The body is an object with an array of texts, such as {\"texts\": [\"one text\", \"another\"]}";
    let bodies: [(&[u8], u16, &str); 12] = [
        (b"", 400, "the body is empty"),
        (b" \r\n", 400, "the body is empty"),
        (b"{\"texts\": [\"\xff\"]}", 400, "byte 12 is not UTF-8"),
        (b"{\"texts\": [\"w4\"", 400, "EOF while parsing a list at line 1 column 15"),
        (b"w4", 400, "expected value at line 1 column 1"),
        (b"{\"texts\": [\"w4\"]} x", 400, "trailing characters at line 1 column 19"),
        (b"{}", 422, "missing field `texts` at line 1 column 2"),
        (b"{\"text\": [\"w4\"]}", 422, "missing field `texts`"),
        (b"{\"texts\": \"w4\"}", 422, "invalid type: string \"w4\", expected a sequence"),
        (b"{\"texts\": [\"w4\", 5]}", 422, "invalid type: integer `5`, expected a string"),
        (b"{\"texts\": null}", 422, "invalid type: null, expected a sequence"),
        (b"7", 422, "invalid type: integer `7`"),
    ];
    for (body, status, expected) in bodies {
        let refused = answer(server.address, "POST", "/embed", body);
        let error = refused.error();
        assert_eq!(refused.status, status, "{error}");
        assert!(error.contains(expected) && error.ends_with(form), "{error}");
        assert!(refused.headers.contains("content-type: application/json"), "{refused:?}");
    }
    let refused = embed(server.address, &["w4"; 17]);
    assert_eq!((refused.status, &refused.error()[..]), (422, "17 texts are more than the 16 of a request: send fewer"));

    // 10 MB: the client writes all of it before it reads.
    let large = json!({"texts": ["w4 ".repeat(10_000_000 / 3)]}).to_string();
    let mut client = Client::connect(server.address);
    client.send(&request("POST", "/embed", large.as_bytes())).expect("sent");
    let refused = client.answer().expect("an answer");
    let too_long = "the body is longer than 1048576 bytes: send fewer or shorter texts in a request";
    assert_eq!((refused.status, &refused.error()[..]), (413, too_long));
    // Such a client can go on.
    client.ask(&["w4"]);
    model.check(&["w4"], &client.answer().expect("an answer"));
    // One that asks first is answered before it sends the body.
    let head = "POST /embed HTTP/1.1\r\nhost: minilm\r\ncontent-length: 10000000\r\nexpect: 100-continue\r\n\r\n";
    client.send(head.as_bytes()).expect("sent");
    assert_eq!(client.answer().expect("an answer").status, 413);
    assert!(client.is_closed());
    // One that sends ever more is cut off.
    let mut client = Client::connect(server.address);
    let head = "POST /embed HTTP/1.1\r\nhost: minilm\r\ncontent-length: 1000000000\r\n\r\n";
    client.send(head.as_bytes()).expect("sent");
    let piece = vec![b' '; 1 << 20];
    let sent = (0..1000).take_while(|_| client.send(&piece).is_ok()).count();
    assert!(sent < 200, "{sent} MiB were taken");

    let refused = answer(server.address, "GET", "/embed", b"");
    assert_eq!((refused.status, &refused.error()[..]), (405, "the methods here are POST"));
    assert!(refused.headers.contains("allow: post"), "{refused:?}");
    assert_eq!(answer(server.address, "POST", "/metrics", b"").status, 405);
    assert_eq!(answer(server.address, "DELETE", "/health", b"").status, 405);
    let refused = answer(server.address, "POST", "/", b"");
    assert_eq!(refused.status, 404);
    assert!(refused.error().starts_with("there is no /: POST /embed"), "{refused:?}");
    let mut client = Client::connect(server.address);
    client.send(b"nonsense\r\n\r\n").expect("sent");
    assert_eq!(client.answer().expect("an answer").status, 400);

    // None of them has done harm.
    model.check(&["w4", ""], &embed(server.address, &["w4", ""]));
    assert_eq!(embed(server.address, &[]).embeddings(), Vec::<Vec<f32>>::new());
    let health = answer(server.address, "GET", "/health", b"");
    assert_eq!((health.status, &health.body[..]), (200, "{\"status\": \"ok\"}"));
    assert_eq!(server.metric("minilm_requests_total{status=\"400\"}"), 6.0);
    assert_eq!(server.metric("minilm_requests_total{status=\"422\"}"), 7.0);
    assert_eq!(server.metric("minilm_requests_total{status=\"405\"}"), 3.0);
    let metrics = answer(server.address, "GET", "/metrics", b"");
    assert!(metrics.headers.contains("content-type: application/openmetrics-text; version=1.0.0"), "{metrics:?}");
    assert!(metrics.body.contains("# TYPE minilm_requests counter") && metrics.body.ends_with("# EOF\n"));
    server.stop();
    assert_eq!(server.end(), 0);
}

#[test]
fn slow_clients_are_cut_off_and_others_are_answered_meanwhile() {
    let model = Model::new();
    let short = Duration::from_millis(300);
    let limits = Limits { head: short, unread: short, ..Limits::default() };
    // Answers that are larger than what the kernel buffers: 16 texts of 200,000 numbers.
    let large = |texts: &[&[u32]]| Ok(vec![0.123_456_79_f32; texts.len() * 200_000]);
    let server = Server::start(&model, Options { body_time: short, limits, ..Options::default() }, large);
    let (mut silent, mut head) = (Client::connect(server.address), Client::connect(server.address));
    head.send(b"POST /embed HTTP/1.1\r\nhost:").expect("sent");
    let mut body = Client::connect(server.address);
    body.send(b"POST /embed HTTP/1.1\r\nhost: minilm\r\ncontent-length: 16\r\n\r\n{\"texts\":").expect("sent");
    let mut deaf = Client::connect(server.address);
    deaf.ask(&["w4"; 16]);
    assert_eq!(answer(server.address, "GET", "/health", b"").status, 200);
    assert!(silent.is_closed() && head.is_closed());
    let refused = body.answer().expect("an answer");
    assert_eq!((refused.status, &refused.error()[..]), (408, "the body did not arrive within 0.3 s"));
    assert!(body.is_closed());
    // The connection that asks.
    server.wait_for("minilm_connections", 1.0);
    assert_eq!(server.metric("minilm_texts_total"), 16.0, "the answer was computed");
    assert!(deaf.answer().is_err(), "the answer is cut");
    server.stop();
    assert_eq!(server.end(), 0);
}

#[test]
fn connections_past_the_limit_wait_until_one_ends() {
    let model = Model::new();
    let limits = Limits { connections: 2, head: Duration::from_secs(600), ..Limits::default() };
    let server = Server::start(&model, Options { limits, ..Options::default() }, model.embed());
    let (mut one, two) = (Client::connect(server.address), Client::connect(server.address));
    one.ask(&["w4"]);
    model.check(&["w4"], &one.answer().expect("an answer"));
    let third = server.ask(&["w5"]);
    thread::sleep(Duration::from_millis(200));
    assert!(!third.is_finished(), "a third connection is served");
    drop(two);
    model.check(&["w5"], &third.join().expect("no panic"));
    server.stop();
    assert_eq!(server.end(), 0);
}

#[test]
fn texts_of_a_client_that_is_gone_are_not_computed() {
    let (model, gate) = (Model::new(), Gate::default());
    let server = Server::start(&model, Options::default(), gate.before(model.embed()));
    let first = server.ask(&["w4"]);
    gate.wait_for(1);
    let mut gone = Client::connect(server.address);
    gone.ask(&["w5", "w6"]);
    server.wait_for("minilm_queue_texts", 2.0);
    let last = server.ask(&["w7"]);
    server.wait_for("minilm_queue_texts", 3.0);
    server.wait_for("minilm_connections", 4.0);
    drop(gone);
    server.wait_for("minilm_connections", 3.0);
    gate.open();
    model.check(&["w4"], &first.join().expect("no panic"));
    model.check(&["w7"], &last.join().expect("no panic"));
    assert_eq!(server.metric("minilm_texts_abandoned_total"), 2.0);
    assert_eq!(server.metric("minilm_texts_total"), 2.0);
    assert_eq!(server.metric("minilm_queue_texts"), 0.0, "their room is given back");
    server.stop();
    assert_eq!(server.end(), 0);
}

#[test]
fn many_clients_get_the_embeddings_of_their_texts() {
    const TEXTS: [&[&str]; 5] =
        [&["w4 w5"], &["w30", "w31 w32 w33 w34"], &["w7"; 6], &["w49 w48 w47", "w4", "w5 w6"], &[]];
    let model = Model::new();
    let server = Server::start(&model, Options { wait: Duration::from_millis(1), ..Options::default() }, model.embed());
    thread::scope(|scope| {
        for client in 0..8 {
            let (server, model) = (&server, &model);
            scope.spawn(move || {
                let mut connection = Client::connect(server.address);
                for round in 0..20 {
                    let texts = TEXTS[(client + round) % TEXTS.len()];
                    connection.ask(texts);
                    model.check(texts, &connection.answer().expect("an answer"));
                }
            });
        }
    });
    // Each list of texts was sent 8 * 20 / 5 times.
    assert_eq!(server.metric("minilm_texts_total"), 32.0 * 12.0);
    server.stop();
    assert_eq!(server.end(), 0);

    // A request that is a batch by itself has the bits of that batch.
    let texts = ["w4 w5", "w30", "w7 w8 w9 w10 w11", "w6"];
    let wait = Options { batch: 4, wait: Duration::from_secs(600), ..Options::default() };
    let alone = Server::start(&model, wait, model.embed());
    let found: Vec<u32> = embed(alone.address, &texts).embeddings().concat().iter().map(|x| x.to_bits()).collect();
    let tokens = texts.map(tokens_of);
    let expected = model.embed()(&tokens.each_ref().map(Vec::as_slice)).expect("embeddings");
    assert_eq!(found, expected.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
    alone.stop();
    assert_eq!(alone.end(), 0);
}

#[test]
fn a_batch_that_fails_is_told_to_its_clients_alone_and_shows_in_the_health() {
    let model = Model::new();
    let mut embed_batch = model.embed();
    // The first failing batch is one that the model itself refuses: a token that it does not have.
    let server = Server::start(&model, Options::default(), move |texts| match texts {
        [text] if text.contains(&49) => embed_batch(&[&[1, 50, 2][..]]),
        [text] if text.contains(&48) => panic!("a bug"),
        texts => embed_batch(texts),
    });
    let health = || answer(server.address, "GET", "/health", b"");
    let failed = embed(server.address, &["w49"]);
    assert_eq!(failed.status, 500);
    assert!(failed.error().contains("the index 50 is no row of the table"), "{failed:?}");
    assert_eq!(health().status, 503);
    assert_eq!(health().error(), "the engine has failed to compute a batch; its log says why");
    assert_eq!(server.metric("minilm_batches_failed_total"), 1.0);
    model.check(&["w4"], &embed(server.address, &["w4"]));
    assert_eq!(health().status, 200);
    // A thread that has ended answers nothing, and no request waits for it.
    for _ in 0..2 {
        let failed = embed(server.address, &["w48"]);
        assert_eq!((failed.status, &failed.error()[..]), (500, "the engine has ended"));
    }
    server.stop();
    assert_eq!(server.served.join().expect("no panic"), 0);
    assert!(server.engine.join().is_err());
}

#[test]
fn the_health_is_good_again_some_time_after_a_batch_has_failed() {
    let model = Model::new();
    let options = Options { unhealthy: Duration::from_millis(300), ..Options::default() };
    let mut embed_batch = model.embed();
    let server = Server::start(&model, options, move |_| embed_batch(&[&[1, 50, 2][..]]));
    assert_eq!(embed(server.address, &["w4"]).status, 500);
    let begin = Instant::now();
    while answer(server.address, "GET", "/health", b"").status != 200 {
        assert!(begin.elapsed() < Duration::from_secs(60), "it stays bad");
        thread::sleep(Duration::from_millis(5));
    }
    server.stop();
    assert_eq!(server.end(), 0);
}

#[test]
fn a_text_that_is_too_long_is_refused() {
    let model = Model::new();
    let server = Server::start(&model, Options::default(), model.embed());
    let body = |bytes: usize| format!("{{\"texts\": [\"w4\", \"{}\"]}}", "!".repeat(bytes));
    let refused = answer(server.address, "POST", "/embed", body((64 << 10) + 1).as_bytes());
    assert_eq!(refused.status, 422);
    assert_eq!(refused.error(), "text 1 has 65537 bytes, and 65536 are the most: send its beginning");
    assert_eq!(answer(server.address, "POST", "/embed", body(64 << 10).as_bytes()).status, 200);
    server.stop();
    assert_eq!(server.end(), 0);
}

/// Runs `minilm serve` with the model at a free port.
fn command(model: &Model, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_minilm"));
    command.args(["serve", "--model"]).arg(model.folder.path()).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The address at which a running command listens.
fn listening(running: &mut Child) -> SocketAddr {
    let mut line = String::new();
    BufReader::new(running.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let address = line.strip_prefix("listening at http://").and_then(|rest| rest.strip_suffix(", cpu:0 computes\n"));
    address.unwrap_or_else(|| panic!("{line}")).parse().expect("an address")
}

#[test]
fn the_command_serves_until_a_signal_and_then_answers_what_has_arrived() {
    let model = Model::new();
    for (signal, weights) in [("TERM", "device"), ("INT", "stream")] {
        // The batch begins a second after the first text: the signal comes before that.
        let arguments = ["--listen", "127.0.0.1:0", "--wait", "1000", "--weights", weights];
        let mut running = command(&model, &arguments).spawn().expect("it runs");
        let address = listening(&mut running);
        let mut client = Client::connect(address);
        client.ask(&["w4 w5", "w6"]);
        let begin = Instant::now();
        while metric(address, "minilm_requests_total{status=\"200\"}") < 1.0 {
            assert!(begin.elapsed() < Duration::from_secs(60), "no request is counted");
        }
        let killed = Command::new("kill").args(["-s", signal, &running.id().to_string()]).status().expect("kill runs");
        assert!(killed.success());
        model.check(&["w4 w5", "w6"], &client.answer().expect("an answer"));
        assert!(running.wait().expect("it ends").success());
        let mut said = String::new();
        running.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
        assert_eq!(said, format!("SIG{signal}: no new requests; those that have arrived are answered\n"));
    }
}

#[test]
fn a_second_signal_ends_the_command_although_a_text_waits() {
    let model = Model::new();
    // The batch would begin a minute after its text.
    let mut running = command(&model, &["--listen", "127.0.0.1:0", "--wait", "60000"]).spawn().expect("it runs");
    let address = listening(&mut running);
    let mut client = Client::connect(address);
    client.ask(&["w4"]);
    let begin = Instant::now();
    while metric(address, "minilm_queue_texts") + metric(address, "minilm_connections") < 2.0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the request has not arrived");
    }
    for _ in 0..2 {
        let killed = Command::new("kill").args(["-s", "TERM", &running.id().to_string()]).status().expect("kill runs");
        assert!(killed.success());
        thread::sleep(Duration::from_millis(100));
    }
    let begin = Instant::now();
    let status = running.wait().expect("it ends");
    assert!(!status.success() && begin.elapsed() < Duration::from_secs(30), "{status} after {:?}", begin.elapsed());
    let mut said = String::new();
    running.stderr.take().expect("a pipe").read_to_string(&mut said).expect("UTF-8");
    assert!(said.contains("the server has ended with ") && said.contains("A smaller --queue drains sooner"), "{said}");
}

#[test]
fn the_command_refuses_an_address_that_is_taken_and_a_model_that_is_missing() {
    let model = Model::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let refusal = |arguments: &[&str]| {
        let ran = command(&model, arguments).output().expect("it runs");
        assert!(!ran.status.success() && ran.stdout.is_empty(), "{ran:?}");
        String::from_utf8(ran.stderr).expect("UTF-8")
    };
    let said = refusal(&["--listen", &address]);
    assert!(said.contains(&format!("cannot listen at {address}: ")), "{said}");
    assert!(said.contains("Name another address with --listen"), "{said}");
    for arguments in [["--queue", "0"], ["--wait", "x"], ["--listen", "here"]] {
        let said = refusal(&arguments);
        assert!(said.contains("invalid value"), "{said}");
    }
    fs::remove_file(model.folder.path().join("config.json")).expect("removed");
    let said = refusal(&["--listen", "127.0.0.1:0"]);
    assert!(said.contains("config.json is missing. Run `make model`"), "{said}");
}
