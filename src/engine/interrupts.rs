//! System calls that a signal interrupts are repeated, but not for ever: a file system in user space may
//! answer every attempt with an interruption, and the loops of the standard library would never end.

use rustix::io::Errno;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How often a call is repeated. Signals interrupt a call a few times at most.
const MAX_REPEATS: u32 = 500;

/// The pause before each repetition after the first few, so that the limit takes a second and not an instant.
const PAUSE: Duration = Duration::from_millis(2);

/// Repetitions without a pause.
const IMMEDIATE: u32 = 10;

/// Repeats a system call while signals interrupt it.
///
/// # Errors
/// If the call fails for another reason, or is interrupted every time. The error is then not an interruption,
/// so that no caller repeats the call again.
pub fn repeat<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    for repeats in 0..=MAX_REPEATS {
        match call() {
            Err(e) if e.kind() == ErrorKind::Interrupted => {
                if repeats >= IMMEDIATE {
                    std::thread::sleep(PAUSE);
                }
            }
            ended => return ended,
        }
    }
    Err(Error::other(format!("the file system interrupted all of {MAX_REPEATS} attempts")))
}

/// A reader or writer whose calls are repeated as [`repeat`] does.
#[derive(Debug)]
pub struct Repeated<T>(pub T);

impl<W: Write> Write for Repeated<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        repeat(|| self.0.write(bytes))
    }

    fn flush(&mut self) -> Result<()> {
        repeat(|| self.0.flush())
    }
}

impl<R: Read> Read for Repeated<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        repeat(|| self.0.read(buffer))
    }
}

/// Makes the content of a file and its metadata durable.
///
/// # Errors
/// If the disk reports an error, or the call is interrupted every time.
pub fn sync_all(file: &File) -> Result<()> {
    repeat(|| Ok(rustix::fs::fsync(file)?))
}

/// Makes the entries of a folder durable. Some file systems cannot, such as CIFS and several in user space;
/// that is no error, because no other call does it.
///
/// # Errors
/// If the folder cannot be opened, or fails like [`sync_all`].
pub fn sync_folder(folder: &Path) -> Result<()> {
    allow_missing_folder_sync(File::open(folder).and_then(|folder| sync_all(&folder)))
}

/// Drops the errors with which file systems answer that they cannot sync folders.
fn allow_missing_folder_sync(synced: Result<()>) -> Result<()> {
    let lacks = [Errno::INVAL, Errno::NOTSUP, Errno::NOSYS, Errno::BADF].map(Errno::raw_os_error);
    match synced {
        Err(e) if e.raw_os_error().is_some_and(|code| lacks.contains(&code)) => Ok(()),
        synced => synced,
    }
}

/// Makes the content of a file durable.
///
/// # Errors
/// Fails like [`sync_all`].
pub fn sync_data(file: &File) -> Result<()> {
    repeat(|| Ok(rustix::fs::fdatasync(file)?))
}

/// Fills a buffer from a file at an offset.
///
/// # Errors
/// If the file ends before, or fails like [`sync_all`].
pub fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> Result<()> {
    while !buffer.is_empty() {
        match repeat(|| file.read_at(buffer, offset))? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            count => {
                buffer = &mut buffer[count..];
                offset += count as u64;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Seek;

    /// Interrupts this many calls before each one that works.
    struct Interrupting {
        times: u32,
        left: u32,
    }

    impl Interrupting {
        fn call(&mut self) -> Result<usize> {
            if self.left == 0 {
                self.left = self.times;
                return Ok(1);
            }
            self.left -= 1;
            Err(ErrorKind::Interrupted.into())
        }
    }

    impl Write for Interrupting {
        fn write(&mut self, _: &[u8]) -> Result<usize> {
            self.call()
        }

        fn flush(&mut self) -> Result<()> {
            self.call().map(drop)
        }
    }

    impl Read for Interrupting {
        fn read(&mut self, _: &mut [u8]) -> Result<usize> {
            self.call()
        }
    }

    #[test]
    fn a_file_system_may_lack_a_sync_of_folders_and_nothing_else() {
        sync_folder(tempfile::tempdir().unwrap().path()).unwrap();
        assert!(sync_folder(Path::new("/no/such/folder")).is_err());
        let passes: Vec<i32> = (1..=133)
            .filter(|&code| allow_missing_folder_sync(Err(Error::from_raw_os_error(code))).is_ok())
            .collect();
        assert_eq!(passes, [Errno::BADF, Errno::INVAL, Errno::NOSYS, Errno::NOTSUP].map(Errno::raw_os_error));
    }

    #[test]
    fn some_interruptions_are_repeated_and_endless_ones_are_an_error() {
        for (times, works) in [(0, true), (1, true), (15, true), (u32::MAX, false)] {
            let device = || Repeated(Interrupting { times, left: times });
            assert_eq!(device().write_all(b"abc").is_ok(), works, "{times}");
            assert_eq!(device().flush().is_ok(), works);
            assert_eq!(device().read_exact(&mut [0; 3]).is_ok(), works);
            assert_eq!(std::io::copy(&mut device().take(3), &mut std::io::sink()).is_ok(), works);
        }
        let endless = Repeated(Interrupting { times: u32::MAX, left: u32::MAX }).write_all(b"a").unwrap_err();
        assert_ne!(endless.kind(), ErrorKind::Interrupted, "no caller repeats it");
    }

    #[test]
    fn a_file_is_read_up_to_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abcdef").unwrap();
        file.rewind().unwrap();
        sync_all(&file).unwrap();
        sync_data(&file).unwrap();
        let mut bytes = [0; 3];
        read_exact_at(&file, &mut bytes, 2).unwrap();
        assert_eq!(&bytes, b"cde");
        assert_eq!(read_exact_at(&file, &mut bytes, 4).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
