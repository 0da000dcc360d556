// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// trapped makes the command hand each of its system calls that may change the kernel's state to the test, by seccomp.
// strace could kill it, too, but counts the calls of each thread by themselves.
const trapped = "SLIPSTREAM_TEST_TRAPPED"

// Parts of seccomp's interface that package unix lacks.
const (
	nrOffset   = 0  // of struct seccomp_data
	argsOffset = 16 // of 8 bytes each
)

// beTrapped installs the filter for this process and the commands that it starts, and writes the listener's number to
// descriptor 3.
func beTrapped() error {
	const notify, allow = 0xff, 0xfe // places to jump to
	program := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nrOffset}}
	for _, nr := range []uint32{unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_WRITEV, unix.SYS_SETSOCKOPT, unix.SYS_BPF, unix.SYS_EXECVE, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT, unix.SYS_RENAMEAT} {
		program = append(program, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: nr, Jt: notify})
	}
	program = append(program,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT, Jf: allow},
		unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: argsOffset + 2*8},
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.O_WRONLY | unix.O_RDWR, Jt: notify},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
	for i := range program {
		for _, to := range []*uint8{&program[i].Jt, &program[i].Jf} {
			switch *to {
			case notify:
				*to = uint8(len(program) - 1 - i - 1)
			case allow:
				*to = uint8(len(program) - 2 - i - 1)
			}
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH |
		unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV // signals of the Go runtime would make the call twice
	listener, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	if _, err := unix.Write(3, []byte(strconv.Itoa(int(listener)))); err != nil {
		return err
	}
	if err := unix.Close(3); err != nil || os.Getenv(trapped) != "sh" {
		return err
	}
	return unix.Exec("/bin/sh", append([]string{"sh"}, os.Args[1:]...), os.Environ())
}

// trap counts the state-changing calls of a command and its children, and kills them before one.
type trap struct {
	*lab.Process
	pid int

	mu    sync.Mutex
	armed bool // it may be killed
	at    int  // kill at this call, from 1 on; 0: never
	calls []string
	fired bool
}

// arm counts calls from now on.
func (t *trap) arm() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.armed, t.calls = true, nil
}

// made returns the calls that counted, and whether the last of them has ended the process.
func (t *trap) made() ([]string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls, t.fired
}

// trap starts a command on the node. It is killed before its call number at. Calls count from the start, or
// from when it is armed.
func (s *site) trap(cmd *exec.Cmd, armed bool, at int) *trap {
	s.t.Helper()
	r, w, err := os.Pipe()
	s.check(err)
	defer r.Close()
	cmd.Env = append([]string{trapped + "=1"}, cmd.Env...)
	cmd.ExtraFiles = []*os.File{w}
	p, err := s.node.Start(cmd)
	s.check(err)
	s.check(w.Close())
	s.t.Cleanup(func() { p.Kill() })
	number := make([]byte, 8)
	n, err := r.Read(number)
	s.check(err)
	theirs, err := strconv.Atoi(string(number[:n]))
	s.check(err)
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	s.check(err)
	defer unix.Close(pidfd)
	listener, err := unix.PidfdGetfd(pidfd, theirs, 0)
	s.check(err)
	t := &trap{Process: p, pid: cmd.Process.Pid, armed: armed, at: at}
	served := make(chan error, 1)
	go func() { served <- t.serve(listener) }()
	s.t.Cleanup(func() {
		p.Kill()
		<-p.Done()
		if err := <-served; err != nil {
			s.t.Errorf("seccomp: %v", err)
		}
	})
	return t
}

// notification is struct seccomp_notif, answer struct seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type answer struct {
	id         uint64
	val        int64
	err, flags int32
}

func (t *trap) serve(listener int) error {
	defer unix.Close(listener)
	for {
		fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 100); err != nil && err != unix.EINTR {
			return err
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			select {
			case <-t.Done():
				return nil
			default:
				continue
			}
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno == unix.ENOENT || errno == unix.EINTR {
			continue // the caller is gone
		} else if errno != 0 {
			return errno
		}
		if t.count(&n) {
			_ = unix.Kill(-t.pid, unix.SIGKILL)
			continue
		}
		a := answer{id: n.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a))); errno != 0 && errno != unix.ENOENT {
			return errno
		}
	}
}

// count counts a call if it changes something, and reports whether the process shall end at it.
func (t *trap) count(n *notification) bool {
	what := changed(n)
	t.mu.Lock()
	defer t.mu.Unlock()
	if what == "" || t.fired {
		return false
	}
	t.calls = append(t.calls, what)
	t.fired = t.armed && len(t.calls) == t.at
	return t.fired
}

// changed says what a call changes; "" is nothing that outlives the process.
func changed(n *notification) string {
	switch n.nr {
	case unix.SYS_EXECVE:
		return "exec " + filepath.Base(text(n, n.args[0]))
	case unix.SYS_BPF:
		switch n.args[0] {
		case unix.BPF_MAP_UPDATE_ELEM, unix.BPF_MAP_DELETE_ELEM, unix.BPF_OBJ_PIN, unix.BPF_PROG_ATTACH, unix.BPF_PROG_DETACH, unix.BPF_LINK_CREATE, unix.BPF_LINK_UPDATE, unix.BPF_LINK_DETACH, unix.BPF_MAP_UPDATE_BATCH, unix.BPF_MAP_DELETE_BATCH:
			return fmt.Sprint("bpf ", n.args[0])
		}
	case unix.SYS_SETSOCKOPT: // iptables-legacy: IPT_SO_SET_REPLACE and IPT_SO_SET_ADD_COUNTERS
		if (n.args[1] == unix.SOL_IP || n.args[1] == unix.SOL_IPV6) && (n.args[2] == 64 || n.args[2] == 65) {
			return "setsockopt"
		}
	case unix.SYS_OPENAT, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT, unix.SYS_RENAMEAT:
		if path := text(n, n.args[1]); strings.HasPrefix(path, "/proc/sys/") || strings.HasPrefix(path, "/sys/") || n.nr == unix.SYS_RENAMEAT {
			return "file " + path
		}
	case unix.SYS_SENDTO:
		return message(n, n.args[1])
	case unix.SYS_SENDMSG:
		vector := memory(n, n.args[1], 24) // of struct msghdr
		if first := memory(n, word(vector, 16), 8); first != nil {
			return message(n, word(first, 0))
		}
	case unix.SYS_WRITEV:
		if first := memory(n, n.args[1], 8); first != nil {
			return message(n, word(first, 0))
		}
	}
	return ""
}

// message is changed for a message to a netlink socket.
func message(n *notification, at uint64) string {
	b := memory(n, at, 20)
	protocol, ok := netlinkProtocol(n)
	if !ok || b == nil {
		return ""
	}
	kind, flags := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint16(b[6:])
	is := false
	switch protocol {
	case unix.NETLINK_ROUTE:
		is = kind >= 16 && kind&3 != 2 // not RTM_GET...
	case unix.NETLINK_NETFILTER:
		command := kind & 0xff
		switch kind >> 8 {
		case unix.NFNL_SUBSYS_NFTABLES: // changes are in batches
		case unix.NFNL_SUBSYS_IPSET:
			is = command >= 2 && command <= 6 || command == 9 || command == 10 // create to swap, add, delete
		case unix.NFNL_SUBSYS_CTNETLINK:
			is = command == 0 || command == 2 // new, delete
		default:
			is = kind == unix.NFNL_MSG_BATCH_BEGIN
		}
	case unix.NETLINK_GENERIC:
		is = kind > unix.GENL_ID_CTRL && flags&unix.NLM_F_DUMP == 0
	}
	if !is {
		return ""
	}
	return fmt.Sprintf("netlink %d %#x", protocol, kind)
}

// netlinkProtocol returns the protocol of the socket that a call writes to, if it is netlink's.
func netlinkProtocol(n *notification) (int, bool) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", n.pid))
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(status), "\nTgid:")
	var leader int
	if _, err := fmt.Sscan(rest, &leader); err != nil {
		return 0, false
	}
	pidfd, err := unix.PidfdOpen(leader, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, int(n.args[0]), 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_NETLINK {
		return 0, false
	}
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return protocol, err == nil
}

// memory reads from the caller; nil if it cannot.
func memory(n *notification, at uint64, size int) []byte {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", n.pid))
	if err != nil {
		return nil
	}
	defer f.Close()
	b := make([]byte, size)
	if _, err := f.ReadAt(b, int64(at)); err != nil {
		return nil
	}
	return b
}

func word(b []byte, at int) uint64 {
	if len(b) < at+8 {
		return 0
	}
	return binary.NativeEndian.Uint64(b[at:])
}

// text reads a string from the caller, which may end with a page.
func text(n *notification, at uint64) string {
	var all []byte
	for len(all) < unix.PathMax {
		b := memory(n, at+uint64(len(all)), 1)
		if b == nil || b[0] == 0 {
			break
		}
		all = append(all, b[0])
	}
	return string(all)
}

// TestTrap checks what counts: changes of a table, a link, a sysctl, an IP set and a connection, and not a look at them.
func TestTrap(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary, kerneltest.IPSet)
	const script = `
		nft list ruleset; ip link; ipset list; cat /proc/sys/net/ipv4/ip_forward
		nft add table ip x; ip address add 192.0.2.9/32 dev lo; echo 1 >/proc/sys/net/ipv4/ip_forward; ipset create x hash:ip; ipset destroy x`
	want := []string{"exec sh", "exec nft", "exec ip", "exec ipset", "exec cat",
		"exec nft", "netlink 12 0x10", "exec ip", "netlink 0 0x14", "file /proc/sys/net/ipv4/ip_forward",
		"exec ipset", "netlink 12 0x602", "exec ipset", "netlink 12 0x603"}
	s := newSite(t)
	for at := range len(want) + 1 {
		s.shell("nft delete table ip x || true; ipset destroy x || true; ip address del 192.0.2.9/32 dev lo || true")
		cmd := s.command("-ec", script)
		cmd.Env = append(cmd.Env, trapped+"=sh")
		p := s.trap(cmd, true, at)
		err := p.Wait()
		calls, killed := p.made()
		if expect := want[:cmp.Or(at, len(want))]; !slices.Equal(calls, expect) || killed != (at > 0) || killed != (err != nil) {
			t.Errorf("killed %t at call %d, error %v, of %q; want %q", killed, at, err, calls, expect)
		}
		if has := strings.Contains(s.nft("list tables"), "table ip x"); has != (at == 0 || at >= 8) {
			t.Errorf("killed at call %d: the table is there: %t", at, has)
		}
	}
}
