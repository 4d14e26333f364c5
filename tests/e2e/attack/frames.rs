//! HTTP/2 as bytes, right and wrong.

use super::Numbers;

/// What a client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
/// Ends the headers, and the stream.
const WHOLE: u8 = 0x4 | 0x1;

/// A frame as RFC 9113 has it, of the length that is told.
fn frame(length: usize, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(length).unwrap().to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

fn right_length(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    frame(payload.len(), kind, flags, stream, payload)
}

/// `:method: POST`, `:scheme: http`, `:path: /` from the static table.
const HEADER_BLOCK: &[u8] = &[0x83, 0x86, 0x84];

/// A connection that is wrong from some byte on.
pub fn malformed(numbers: &mut Numbers) -> Vec<u8> {
    let begun = [PREFACE, &right_length(SETTINGS, 0, 0, &[])].concat();
    match numbers.below(12) {
        // Not even a beginning.
        0 => {
            let count = 1 + numbers.below(300);
            numbers.bytes(count)
        }
        1 => b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        2 => PREFACE[..numbers.below(PREFACE.len())].to_vec(),
        3 => {
            let mut bytes =
                [begun.as_slice(), &right_length(HEADERS, WHOLE, 1, HEADER_BLOCK)].concat();
            numbers.damage(&mut bytes);
            bytes
        }
        // Frames of any kind, known or not, with noise in them.
        4 | 5 => {
            let mut bytes = begun;
            for _ in 0..1 + numbers.below(8) {
                let (kind, flags, stream) =
                    (numbers.byte() % 12, numbers.byte(), numbers.below(6) as u32);
                let count = numbers.below(40);
                bytes.extend(right_length(kind, flags, stream, &numbers.bytes(count)));
            }
            bytes
        }
        // A header block that decodes to nothing.
        6 => {
            let count = 1 + numbers.below(100);
            [begun, right_length(HEADERS, WHOLE, 1, &numbers.bytes(count))].concat()
        }
        // Lengths that are too large, and never come.
        7 => [begun, frame(0xff_ffff, numbers.byte() % 10, 0, 1, &[0; 16])].concat(),
        // Streams that are opened and reset, many times.
        8 => {
            let mut bytes = begun;
            for number in 0..100 {
                let stream = 2 * number + 1;
                bytes.extend(right_length(HEADERS, WHOLE, stream, HEADER_BLOCK));
                bytes.extend(right_length(3, 0, stream, &8_u32.to_be_bytes()));
            }
            bytes
        }
        // A header block that goes on and on.
        9 => {
            let mut bytes = [begun, right_length(HEADERS, 0, 1, HEADER_BLOCK)].concat();
            for _ in 0..50 {
                bytes.extend(right_length(9, 0, 1, &[0x40, 1, b'a', 1, b'b']));
            }
            bytes
        }
        // Settings and windows out of range.
        10 => {
            let settings = [0, 4, 0xff, 0xff, 0xff, 0xff];
            let window = right_length(8, 0, 0, &u32::MAX.to_be_bytes());
            [begun, right_length(SETTINGS, 0, 0, &settings), window].concat()
        }
        // Pings and settings by the hundred, to be acknowledged.
        _ => {
            let ping = right_length(6, 0, 0, &[0; 8]);
            let settings = right_length(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 1]);
            [begun, ping.repeat(200), settings.repeat(200)].concat()
        }
    }
}
