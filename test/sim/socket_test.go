// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/sys/unix"
)

// A socket is a netlink socket to a virtual kernel. Package nfnl writes to a file descriptor and reads from it, by
// system calls. So the socket has files in memory: what was written to one is a request, and what is to be read is put
// into the other before.

// namespaces are the virtual kernels by the number that stands for the file descriptor of a network namespace. Each
// user of a kernel has a number of its own, so that the kernel knows who sends.
var namespaces struct {
	sync.Mutex
	next int
	all  map[int]*user
}

// firstNamespace is above all file descriptors, so that tests with real ones can run in the same process.
const firstNamespace = 1 << 24

// user is a program with sockets to a virtual kernel.
type user struct {
	kernel *kernel
	name   string
	netns  int

	// before is called before the kernel takes a request, and before each further message of a dump. It returns
	// what goes wrong. It is nil for users to whom nothing happens.
	before func(exchange) failure
}

// exchange is what is about to happen on a socket.
type exchange struct {
	commit bool // a transaction; false for a request that reads
	dump   bool // the next message of a dump
	size   int  // bytes of the request
}

// failure is what goes wrong with an exchange. The zero value is nothing.
type failure struct {
	send        unix.Errno // of the system call that sends: the kernel has not seen the request
	refuse      unix.Errno // the kernel refuses the transaction
	lose        bool       // the answers are lost, and the socket says so by ENOBUFS
	overflow    bool       // ENOBUFS before the answers
	interrupted bool       // the dump says that it was interrupted
	after       func()     // is called when the kernel has done its part
}

func (k *kernel) newUser(name string) *user {
	namespaces.Lock()
	defer namespaces.Unlock()
	namespaces.next++
	u := &user{kernel: k, name: name, netns: firstNamespace + namespaces.next}
	if namespaces.all == nil {
		namespaces.all = map[int]*user{}
	}
	namespaces.all[u.netns] = u
	return u
}

func (u *user) leave() {
	namespaces.Lock()
	defer namespaces.Unlock()
	delete(namespaces.all, u.netns)
}

func (u *user) dial() *nfnl.Conn {
	c, err := nfnl.Dial(u.netns)
	if err != nil {
		panic(err)
	}
	return c
}

// TestMain puts the virtual kernels behind the one function that opens netlink sockets.
func TestMain(m *testing.M) {
	dial := sock.Dial
	sock.Dial = func(protocol int, to string, c netlink.Config) (*netlink.Conn, error) {
		namespaces.Lock()
		u := namespaces.all[c.NetNS]
		namespaces.Unlock()
		if u == nil {
			return dial(protocol, to, c)
		}
		s, err := newSocket(u)
		if err != nil {
			return nil, err
		}
		return netlink.NewConn(s, 1), nil
	}
	m.Run()
}

// socket implements what package nfnl uses of netlink.Socket.
type socket struct {
	user    *user
	in, out int // files in memory: for a request, and for an answer, which is at its end

	answers []answer
	dump    *dump // that runs
}

// answer is a datagram, or an error of the socket.
type answer struct {
	datagram []byte
	err      error
}

// outSize is more than any answer has.
const outSize = 1 << 20

func newSocket(u *user) (*socket, error) {
	s := &socket{user: u}
	for _, fd := range []*int{&s.in, &s.out} {
		var err error
		if *fd, err = unix.MemfdCreate("virtual-netlink", unix.MFD_CLOEXEC); err != nil {
			return nil, fmt.Errorf("memory for a virtual socket: %w", err)
		}
	}
	return s, unix.Ftruncate(s.out, outSize)
}

func (s *socket) Close() error                                   { return errors.Join(unix.Close(s.in), unix.Close(s.out)) }
func (s *socket) SetReadBuffer(int) error                        { return nil }
func (s *socket) SetWriteBuffer(int) error                       { return nil }
func (s *socket) ReadBuffer() (int, error)                       { return 0, nil }
func (s *socket) WriteBuffer() (int, error)                      { return 0, nil }
func (s *socket) SyscallConn() (syscall.RawConn, error)          { return s, nil }
func (s *socket) Control(func(uintptr)) error                    { return unix.EOPNOTSUPP }
func (s *socket) Receive() ([]netlink.Message, error)            { return nil, unix.EOPNOTSUPP }
func (s *socket) Send(netlink.Message) error                     { return unix.EOPNOTSUPP }
func (s *socket) SendMessages(m []netlink.Message) error         { return unix.EOPNOTSUPP }
func (s *socket) ReceiveIter() iter.Seq2[netlink.Message, error] { return nil }

// Write implements syscall.RawConn: it takes a request.
func (s *socket) Write(write func(fd uintptr) bool) error {
	if _, err := unix.Seek(s.in, 0, unix.SEEK_SET); err != nil {
		return err
	}
	write(uintptr(s.in))
	n, err := unix.Seek(s.in, 0, unix.SEEK_CUR)
	if err != nil {
		return err
	}
	request := make([]byte, n)
	if _, err := unix.Pread(s.in, request, 0); err != nil {
		return err
	}
	commit := len(request) >= 6 && binary.NativeEndian.Uint16(request[4:]) == unix.NFNL_MSG_BATCH_BEGIN
	var f failure
	if s.user.before != nil {
		f = s.user.before(exchange{commit: commit, size: len(request)})
	}
	if f.send != 0 {
		return f.send
	}
	var answers [][]byte
	if commit {
		answers = s.user.kernel.batch(s.user, request, f.refuse)
	} else {
		d := s.dump // which may go on, of an exchange that was given up
		if answers, s.dump = s.user.kernel.get(request); d != nil {
			if s.dump != nil {
				answers = [][]byte{acknowledgement(request, unix.EBUSY, 0)}
			}
			s.dump = d
		}
	}
	s.user.kernel.happened(s.user)
	if f.lose || f.overflow {
		s.answers = append(s.answers, answer{err: unix.ENOBUFS})
	}
	for _, a := range answers {
		if !f.lose {
			s.answers = append(s.answers, answer{datagram: a})
		}
	}
	if f.after != nil {
		f.after()
	}
	return nil
}

// Read implements syscall.RawConn: it delivers the next answer.
func (s *socket) Read(read func(fd uintptr) bool) error {
	if len(s.answers) == 0 && s.dump != nil {
		var f failure
		if s.user.before != nil {
			f = s.user.before(exchange{dump: true})
		}
		s.user.kernel.happened(s.user)
		datagram, more := s.user.kernel.more(s.dump, f.interrupted)
		if !more {
			s.dump = nil
		}
		if f.lose {
			return unix.ENOBUFS
		}
		s.answers = append(s.answers, answer{datagram: datagram})
	}
	if len(s.answers) == 0 {
		return unix.EAGAIN
	}
	next := s.answers[0]
	s.answers = s.answers[1:]
	if next.err != nil {
		return next.err
	}
	at := int64(outSize - len(next.datagram))
	if _, err := unix.Pwrite(s.out, next.datagram, at); err != nil {
		return err
	}
	if _, err := unix.Seek(s.out, at, unix.SEEK_SET); err != nil {
		return err
	}
	read(uintptr(s.out))
	return nil
}

// wire appends netlink messages and attributes.
type wire []byte

// message appends a message, of which body writes the attributes.
func (w *wire) message(typ, flags uint16, seq uint32, family nfnl.Family, generation uint32, body func(*wire)) {
	start := len(*w)
	*w = binary.NativeEndian.AppendUint32(*w, 0)
	*w = binary.NativeEndian.AppendUint16(*w, typ)
	*w = binary.NativeEndian.AppendUint16(*w, flags)
	*w = binary.NativeEndian.AppendUint32(*w, seq)
	*w = binary.NativeEndian.AppendUint32(*w, 1)
	*w = append(*w, byte(family), unix.NFNETLINK_V0)
	*w = binary.BigEndian.AppendUint16(*w, uint16(generation))
	body(w)
	binary.NativeEndian.PutUint32((*w)[start:], uint32(len(*w)-start))
}

func (w *wire) bytes(typ uint16, value []byte) {
	*w = binary.NativeEndian.AppendUint16(*w, uint16(4+len(value)))
	*w = binary.NativeEndian.AppendUint16(*w, typ)
	*w = append(*w, value...)
	for len(*w)%4 != 0 {
		*w = append(*w, 0)
	}
}

func (w *wire) text(typ uint16, s string) { w.bytes(typ, append([]byte(s), 0)) }
func (w *wire) be32(typ uint16, n uint32) { w.bytes(typ, binary.BigEndian.AppendUint32(nil, n)) }
func (w *wire) be64(typ uint16, n uint64) { w.bytes(typ, binary.BigEndian.AppendUint64(nil, n)) }
func (w *wire) present(typ uint16, v []byte) {
	if v != nil {
		w.bytes(typ, v)
	}
}

func (w *wire) nested(typ uint16, body func(*wire)) {
	start := len(*w)
	*w = binary.NativeEndian.AppendUint16(*w, 0)
	*w = binary.NativeEndian.AppendUint16(*w, typ|unix.NLA_F_NESTED)
	body(w)
	binary.NativeEndian.PutUint16((*w)[start:], uint16(len(*w)-start))
}

// acknowledgement is the kernel's answer to a message, with NETLINK_EXT_ACK and NETLINK_CAP_ACK. offset is that of the
// attribute that was refused; 0 if unknown.
func acknowledgement(request []byte, errno unix.Errno, offset int) []byte {
	var w wire
	flags := uint16(unix.NLM_F_CAPPED)
	if offset > 0 {
		flags |= unix.NLM_F_ACK_TLVS
	}
	w = binary.NativeEndian.AppendUint32(w, 0)
	w = binary.NativeEndian.AppendUint16(w, unix.NLMSG_ERROR)
	w = binary.NativeEndian.AppendUint16(w, flags)
	w = append(w, request[8:16]...)
	w = binary.NativeEndian.AppendUint32(w, uint32(-int32(errno)))
	w = append(w, request[:16]...)
	if offset > 0 {
		w.bytes(unix.NLMSGERR_ATTR_OFFS, binary.NativeEndian.AppendUint32(nil, uint32(offset)))
	}
	binary.NativeEndian.PutUint32(w, uint32(len(w)))
	return w
}
