//! What an operator writes: the configuration file, and the URL of a store.
//!
//! Every text is taken or refused with an error that names what is wrong; both are the same each
//! time. Neither a secret of the file nor a password of the URL is ever shown, whatever surrounds
//! it.

use siloring::StartError;
use siloring_storage::StoreUrl;

use super::tape::Tape;

/// The secret that the texts hold: occurs in nothing else.
const SECRET: &str = "hush-0123456789-hush-0123456789-hush";
/// What an error repeats of a text, and a sentence around it.
const ERROR_BYTES_MAX: usize = 4096;

pub(super) fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let choice = tape.below(6);
    let text = String::from_utf8_lossy(tape.rest()).into_owned();
    if decoded(&text).contains(SECRET) {
        // Fuzzers learn it from the comparisons; only where it is put below is it a secret.
        return;
    }
    let (front, back) = text.split_once('\u{1}').unwrap_or((&text, ""));
    match choice {
        0 => drop(check_config(&text)),
        // Within quotes that were opened before it the secret would be another setting's text.
        1 if !front.contains(['"', '\'']) => {
            hides_in_config(&format!("{front}secrets = [\"{SECRET}\"]{back}"));
        }
        2 if !front.contains(['"', '\'']) => {
            hides_in_config(&format!("{front}store = [\"postgres://ada:{SECRET}@h/d\"{back}"));
        }
        3 => check_url(&text),
        4 if !front.contains(['@', ':', '/', '?']) => {
            hides_in_url(&format!("postgres://{front}:{SECRET}@{back}"));
        }
        5 if front.contains('?') && !text.contains('@') => {
            hides_in_url(&format!("postgres://{front}password={SECRET}{back}"));
        }
        _ => check_url(&format!("postgres://{front}{SECRET}{back}")),
    }
}

fn check_config(text: &str) -> Option<StartError> {
    let error = siloring::check_config(text).err();
    let again = siloring::check_config(text).err();
    let shown = error.as_ref().map(ToString::to_string);
    assert_eq!(shown, again.map(|again| again.to_string()), "a text is read the same each time");
    let bytes = shown.map_or(0, |shown| shown.len());
    assert!(bytes <= ERROR_BYTES_MAX + 16 * text.len(), "an error is bounded: {bytes} bytes");
    error
}

fn hides_in_config(text: &str) {
    let Some(error) = check_config(text) else {
        return;
    };
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains(SECRET), "a secret is shown: {shown}");
}

fn check_url(text: &str) {
    let parsed = StoreUrl::parse(text);
    assert_eq!(parsed, StoreUrl::parse(text), "a URL is read the same each time");
    let shown = match &parsed {
        Ok(url) => format!("{url}\n{url:?}"),
        Err(error) => format!("{error}\n{error:?}"),
    };
    let repeated = 4 * ERROR_BYTES_MAX + 32 * text.len();
    assert!(shown.len() <= repeated, "what is shown is bounded");
    if is_password(text) {
        let shown = decoded(&shown);
        assert!(!shown.contains(SECRET), "a password is shown: {shown}");
    }
}

/// As `check_url`, of a text in which the secret stands where the client looks for a password.
fn hides_in_url(text: &str) {
    check_url(text);
    if let Err(error) = StoreUrl::parse(text) {
        let shown = decoded(&format!("{error} {error:?}"));
        assert!(!shown.contains(SECRET), "a password is shown: {shown}");
    }
}

/// Whether the client would send the secret as a password, and as nothing else.
fn is_password(text: &str) -> bool {
    let Ok(config) = text.parse::<postgres::Config>() else {
        return false;
    };
    let others = format!(
        "{:?} {:?} {:?} {:?} {:?}",
        config.get_user(),
        config.get_dbname(),
        config.get_options(),
        config.get_application_name(),
        config.get_hosts(),
    );
    let password = config.get_password().map(String::from_utf8_lossy);
    password.is_some_and(|password| password.contains(SECRET)) && !others.contains(SECRET)
}

/// `%41` read as `A`: an encoded password is no secret.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let pair = behind.first_chunk::<2>().filter(|_| first == b'%');
        let byte =
            pair.and_then(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let config = concat!(
        "cluster = \"demo\"\nname = \"pod-a\"\nbind = \"127.0.0.1:7000\"\n",
        "advertise = \"pod-a:7000\"\nstore = \"sqlite:/tmp/demo.db\"\nshards = 2\ncpus = [0, 1]\n",
        "link = \"tcp\"\nidle = \"park\"\nspin_us = 50\n",
        "secrets = [\"0123456789abcdef0123456789abcdef\"]\n",
        "danger_insecure_network = true\ndeadline_ms = 1500\nidle_after_ms = 60000\n",
        "overload_delay_us = 20000\n",
    );
    let texts: &[(u8, &str)] = &[
        (0, config),
        (0, "clutser = \"demo\""),
        (0, "shards = -1"),
        (0, "idle = \"spin\"\nlink = \"unix\"\nbind = \"0.0.0.0:1\""),
        (1, "shards = 1\n\u{1}\nshards = 2"),
        (1, "\u{1}x"),
        (1, "[cluster]\n\u{1}\n"),
        (1, "a = \u{1}"),
        (2, "shards = 1\n\u{1}]\nshards = 1"),
        (2, "\u{1}"),
        (2, "a.\u{1}]"),
        (3, "memory:"),
        (3, "memory:x"),
        (3, "sqlite:/tmp/a b.db?danger_async_commit=1"),
        (3, "sqlite::memory:"),
        (3, "postgres://u:p@h:1/d?application_name=x&danger_async_commit=1"),
        (3, "postgresql:///d?host=/tmp/x&user=u&connect_timeout=3&keepalives=1"),
        (3, "postgres://h/d?sslmode=require&target_session_attrs=read-write"),
        (3, "mysql://h/d"),
        (4, "ada\u{1}db.example:5432/app?user=x"),
        (4, "ada\u{1}h:port/app"),
        (5, "/app?host=/run&user=ada&\u{1}&x=1"),
        (5, "h/d?\u{1}&port=x"),
        (5, "h/d?x=1@&\u{1}"),
        (4, "h/d?pass%77ord=\u{1}&user=u"),
    ];
    texts.iter().map(|(choice, text)| [&[*choice], text.as_bytes()].concat()).collect()
}
