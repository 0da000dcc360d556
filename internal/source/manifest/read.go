// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxFileSize is the largest file that is read, in bytes.
const maxFileSize = 256 << 20

// isManifest tells whether a file of this name is read: *.yaml, *.yml and
// *.json, not hidden.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// stamp is what tells one state of a file from another without reading it.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime time.Time
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size(), mtime: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.dev, s.ino = uint64(st.Dev), st.Ino
		s.ctime = time.Unix(st.Ctim.Unix())
	}
	return s
}

// snapshot is a file as it was read.
type snapshot struct {
	stamp
	data []byte
	// stable is false if the file changed while it was read.
	stable bool
	// busy says whether somebody had the file open for writing: 1 yes, 0 no,
	// -1 not known.
	busy int
}

// readFile reads a file with its stamp.
func readFile(path string) (*snapshot, error) {
	// Not to block on a FIFO; regular files do not know the flag.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !before.Mode().IsRegular() {
		return nil, errors.New("is not a regular file")
	}
	if before.Size() > maxFileSize {
		return nil, fmt.Errorf("has %d bytes, the limit is %d", before.Size(), maxFileSize)
	}
	s := &snapshot{stamp: stampOf(before), busy: beingWritten(f)}
	s.data = make([]byte, before.Size())
	n, err := io.ReadFull(f, s.data)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, err
	}
	s.stable = n == len(s.data) && stampOf(after) == s.stamp
	s.data = s.data[:n]
	return s, nil
}

// beingWritten tells whether anybody has the file open for writing: 1 yes, 0
// no, -1 not known. Linux grants a read lease (fcntl(2), F_SETLEASE) only on a
// file that nobody has open for writing, to its owner or with CAP_LEASE. The
// lease is given back at once; who opens the file in between waits that long.
func beingWritten(f *os.File) int {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1
	}
	busy := -1
	err = raw.Control(func(fd uintptr) {
		switch _, err := unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_RDLCK); err {
		case nil:
			busy = 0
			_, _ = unix.FcntlInt(fd, unix.F_SETLEASE, unix.F_UNLCK) // closing f does it too
		case unix.EAGAIN:
			busy = 1
		}
	})
	if err != nil {
		return -1
	}
	return busy
}
