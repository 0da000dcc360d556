// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// netlinkSockets has a line for each netlink socket of the thread's network namespace, whichever
// process it belongs to (netlink_native_seq_show).
const netlinkSockets = "/proc/thread-self/net/netlink"

// Reader is a netfilter socket of another process.
type Reader struct {
	Socket  uint64 // its inode number
	Dumping bool   // the kernel has not delivered all of a dump yet: of nf_tables, conntrack, IP sets or another subsystem
}

// Readers tells which processes read from netfilter in one network namespace. It is not safe for concurrent use.
type Readers struct {
	file *os.File
	err  error // why file is nil
	text []byte
	own  map[uint64]bool // whether a socket belongs to this process
}

// OpenReaders opens the list of sockets of the calling thread's network namespace. It needs no
// privileges. If it fails, each Look does.
func OpenReaders() *Readers {
	file, err := os.Open(netlinkSockets)
	return &Readers{file: file, err: err, text: make([]byte, 16<<10)}
}

// Close ends the use of the list.
func (r *Readers) Close() error { return r.file.Close() }

// Look returns the sockets of other processes that exist now. It takes about a microsecond for each
// netlink socket of the namespace, some microseconds more for a hundred other namespaces, and longer if this process has
// new ones.
func (r *Readers) Look() (all []Reader, err error) {
	if r.err != nil {
		return nil, r.err
	}
	text, err := r.read()
	if err != nil {
		return nil, err
	}
	before := r.own
	r.own = map[uint64]bool{}
	var now map[uint64]bool // this process's sockets, if that is needed
	var f [][]byte
	for line := range bytes.Lines(text) {
		// sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
		f = slices.AppendSeq(f[:0], bytes.FieldsSeq(line))
		if len(f) < 10 {
			return nil, fmt.Errorf("%s has a line that is not understood: %q", netlinkSockets, line)
		}
		if string(f[1]) != strconv.Itoa(unix.NETLINK_NETFILTER) || string(f[2]) == "0" { // 0 is the kernel's
			continue
		}
		inode, err := strconv.ParseUint(string(f[9]), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", netlinkSockets, err)
		}
		own, known := before[inode]
		if !known {
			if now == nil {
				now = ownSockets()
			}
			own = now[inode]
		}
		if r.own[inode] = own; !own {
			all = append(all, Reader{Socket: inode, Dumping: string(f[6]) != "0"})
		}
	}
	return all, nil
}

// read reads the list. The kernel walks the sockets of all network namespaces for each read, also for one that finds the
// end. It fills a page with lines as far as they fit, so a read that has much less was the last one.
func (r *Readers) read() ([]byte, error) {
	const page, line = 4096, 256 // at least, at most
	if _, err := r.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for n := 0; ; {
		if len(r.text)-n < page {
			r.text = append(r.text, make([]byte, len(r.text))...)
		}
		got, err := r.file.Read(r.text[n:])
		if n += got; got < page-line {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return r.text[:n], err
		}
	}
}

// ownSockets returns the inode numbers of this process's sockets.
func ownSockets() map[uint64]bool {
	all := map[uint64]bool{}
	const dir = "/proc/self/fd"
	open, _ := os.ReadDir(dir)
	for _, e := range open {
		var inode uint64
		if link, err := os.Readlink(dir + "/" + e.Name()); err == nil {
			if _, err := fmt.Sscanf(link, "socket:[%d]", &inode); err == nil {
				all[inode] = true
			}
		}
	}
	return all
}
