//! Jute, ZooKeeper's encoding of numbers, texts and lists: big-endian, each buffer with its length
//! before it.

/// A message on its way out. It begins with its own length, which [`Out::framed`] fills in.
pub(super) struct Out(Vec<u8>);

impl Out {
    /// A message without a header: the first of a connection.
    pub(super) fn bare() -> Out {
        Out(vec![0; 4])
    }

    /// The part of a message that follows its header.
    pub(super) fn part() -> Out {
        Out::part_of(64)
    }

    /// The same, of about so many bytes.
    pub(super) fn part_of(bytes: usize) -> Out {
        Out(Vec::with_capacity(bytes))
    }

    pub(super) fn i32(mut self, value: i32) -> Out {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn i64(mut self, value: i64) -> Out {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(super) fn bool(mut self, value: bool) -> Out {
        self.0.push(value.into());
        self
    }

    pub(super) fn bytes(mut self, value: &[u8]) -> Out {
        self = self.i32(i32::try_from(value.len()).unwrap_or(i32::MAX));
        self.0.extend(value);
        self
    }

    pub(super) fn text(self, value: &str) -> Out {
        self.bytes(value.as_bytes())
    }

    /// As it is, of a [`Out::part`].
    pub(super) fn written(self) -> Vec<u8> {
        self.0
    }

    /// With its length before it, as it goes out.
    pub(super) fn framed(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len().saturating_sub(4)).unwrap_or(u32::MAX);
        if let Some(head) = self.0.first_chunk_mut() {
            *head = length.to_be_bytes();
        }
        self.0
    }
}

/// A message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// A message that is read from its beginning to its end.
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Broken)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn i32(&mut self) -> Result<i32, Broken> {
        self.take(4)?
            .try_into()
            .map(i32::from_be_bytes)
            .map_err(|_| Broken)
    }

    pub(super) fn i64(&mut self) -> Result<i64, Broken> {
        self.take(8)?
            .try_into()
            .map(i64::from_be_bytes)
            .map_err(|_| Broken)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Broken> {
        Ok(self.take(1)? != [0])
    }

    /// A buffer; one that is not there is written with the length -1.
    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Broken> {
        match self.i32()? {
            -1 => Ok(&[]),
            length => self.take(usize::try_from(length).map_err(|_| Broken)?),
        }
    }

    pub(super) fn text(&mut self) -> Result<String, Broken> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Broken)
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, Broken> {
        let count = self.i32()?;
        (0..count.max(0)).map(|_| self.text()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reads_back_as_it_was_written() {
        let sent = Out::bare()
            .i32(-7)
            .i64(1 << 40)
            .bool(true)
            .bytes(b"ab")
            .text("cd")
            .framed();
        assert_eq!(sent.len(), 4 + 4 + 8 + 1 + 6 + 6);
        let mut read = In(&sent);
        assert_eq!(read.i32(), Ok(25), "its length");
        assert_eq!(
            (read.i32(), read.i64(), read.bool()),
            (Ok(-7), Ok(1 << 40), Ok(true))
        );
        assert_eq!(
            (read.bytes(), read.text()),
            (Ok(&b"ab"[..]), Ok("cd".to_owned()))
        );
        assert_eq!(read.i32(), Err(Broken), "there is no more");
    }

    #[test]
    fn a_wrong_length_is_an_error() {
        assert_eq!(In(&[0, 0, 0, 9, 1]).bytes(), Err(Broken));
        assert_eq!(In(&[0xff; 4]).bytes(), Ok(&[][..]));
        assert_eq!(In(&[0xff, 0xff, 0xff, 0xf0]).bytes(), Err(Broken));
        assert_eq!(
            In(&[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]).texts(),
            Err(Broken)
        );
    }
}
