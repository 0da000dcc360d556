// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// Machine describes the machine of a measurement.
type Machine struct {
	Kernel string `json:"kernel"`
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Go     string `json:"go"`
	Load   string `json:"load_average"` // over a minute, before measuring
}

// ThisMachine describes the machine at hand.
func ThisMachine() Machine {
	var u unix.Utsname
	_ = unix.Uname(&u) // it fails for a bad pointer only
	b, _ := os.ReadFile("/proc/cpuinfo")
	return Machine{
		Kernel: unix.ByteSliceToString(u.Release[:]), CPU: cpuModel(string(b)), CPUs: runtime.NumCPU(),
		Go: runtime.Version(), Load: LoadAverage(),
	}
}

// LoadAverage is the load average over a minute.
func LoadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(b), " ")
	return load
}

// String is the machine in one line, without its load.
func (m Machine) String() string {
	return fmt.Sprintf("Linux %s, %d x %s, %s", m.Kernel, m.CPUs, m.CPU, m.Go)
}

var model = regexp.MustCompile(`(?m)^(?:model name|Model|cpu model)\s*:\s*(.*?)\s*$`)

func cpuModel(cpuinfo string) string {
	if m := model.FindStringSubmatch(cpuinfo); m != nil {
		return m[1]
	}
	return "unknown"
}

// QuietLimit is how long [Quiet] waits at most.
var QuietLimit = 10 * time.Second

// Quiet waits until the machine is nearly idle, but not for longer than [QuietLimit]: the
// kernel frees transactions and network namespaces on its own threads, for up to seconds.
func Quiet(ctx context.Context) {
	const window, mostBusy = 200 * time.Millisecond, 0.15 // of all processors
	last, err := ProcessorSeconds()
	for deadline := time.Now().Add(QuietLimit); err == nil && time.Now().Before(deadline) && Sleep(ctx, window) == nil; {
		var now Seconds
		now, err = ProcessorSeconds()
		busy := now.Busy - last.Busy + now.Stolen - last.Stolen
		if busy <= mostBusy*(busy+now.Idle-last.Idle) {
			return
		}
		last = now
	}
}

// Seconds are how long all processors have worked, worked for another virtual machine, and waited, to the kernel's tick.
type Seconds struct{ Busy, Stolen, Idle float64 }

// ProcessorSeconds reads them of the whole machine.
func ProcessorSeconds() (Seconds, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return Seconds{}, err
	}
	stat, err := fs.Stat()
	c := stat.CPUTotal
	return Seconds{c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ, c.Steal, c.Idle + c.Iowait}, err
}

// Sleep waits for d or the end of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// Beside is the path of a program in the directory of this one.
func Beside(name string) string {
	self, _ := os.Executable() // found in /proc
	return filepath.Join(filepath.Dir(self), name)
}

// Used is the processor time, user and system, that a process has used, and commands that
// it has run to their end. That of commands is known to the kernel's tick (10 ms).
func Used(pid int) (time.Duration, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	s, err := p.Stat()
	if err != nil {
		return 0, err
	}
	const tick = 10 * time.Millisecond // USER_HZ, on all kernels
	const scheduled = 2                // CPUCLOCK_SCHED
	var own unix.Timespec
	err = unix.ClockGettime(^int32(pid)<<3|scheduled, &own) // as clock_getcpuclockid(3) makes it
	return time.Duration(own.Nano()) + time.Duration(s.CUTime+s.CSTime)*tick, err
}

// UsedBy is what processes have used together.
func UsedBy(all ...*lab.Program) (sum time.Duration, err error) {
	for _, p := range all {
		used, err := Used(p.PID())
		if err != nil {
			return 0, p.Explain(err)
		}
		sum += used
	}
	return sum, nil
}

// Memory is a process's memory.
func Memory(pid int) (procfs.ProcStatus, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return procfs.ProcStatus{}, err
	}
	return p.NewStatus()
}

// Children are the processes that a process has started. A kernel without
// CONFIG_PROC_CHILDREN names none.
func Children(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the thread may have ended
		for _, text := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(text); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// Serve accepts TCP connections in a namespace, one after the other, has answer use each
// one's descriptor, and closes it, until stop is called. It is one thread with blocking
// system calls: a wait in Go's poller takes longer, and less evenly.
func Serve(ns *lab.Namespace, at netip.AddrPort, answer func(fd int)) (stop func(), err error) {
	fd := -1
	err = ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, Sockaddr(at)), unix.Listen(fd, 1024))
	})
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("listen on %v: %w", at, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for {
			conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			switch {
			case errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED):
				continue
			case err != nil: // it was shut down
				return
			}
			answer(conn)
			unix.Close(conn)
		}
	}()
	return func() {
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		<-done
		unix.Close(fd)
	}, nil
}

// Sockaddr is an IPv4 address as system calls take it.
func Sockaddr(a netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}
