// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// TestKilled kills the process that has attached the programs. They remain, but leave connections alone when the lease
// has ended, until the next start.
func TestKilled(t *testing.T) {
	const cgroup, pods = "SLIPSTREAM_TEST_CGROUP", "SLIPSTREAM_TEST_PODS"
	if path := os.Getenv(cgroup); path != "" { // the process to be killed
		w := &world{t: t, state: desired.New(desired.Config{NodeName: node, MaxTable: desired.TableSizes()[0]})}
		w.options = Options{NetNS: 3, CGroup: path, Pods: os.Getenv(pods), lease: 10 * time.Second}
		w.start()
		w.fill(1, nil)
		w.reconcile()
		fmt.Println("attached")
		w.Run(t.Context())
		return
	}
	w := newWorld(t)
	w.check(w.Close())
	c := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	c.Env = append(os.Environ(), cgroup+"="+w.options.CGroup, pods+"="+w.options.Pods)
	namespace, err := unix.Dup(w.node.FD())
	w.check(err)
	file := os.NewFile(uintptr(namespace), "netns")
	defer file.Close()
	c.ExtraFiles = []*os.File{file}
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	w.check(err)
	w.check(c.Start())
	defer c.Process.Kill() // again, if it was not
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "attached\n" {
		t.Fatalf("%q, %v", line, err)
	}
	w.direct(&w.client.Machine, true)
	w.check(c.Process.Kill())
	_ = c.Wait() // killed
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if _, err := w.client.Connect(lab.TCP, frontends[0]); err != nil {
			break
		}
		if time.Since(start) > 2*time.Minute {
			t.Fatal("the programs still connect sockets")
		}
	}
	w.direct(&w.client.Machine, false)
	w.direct(&w.node.Machine, false)
	if !answers(w.node.FD()) {
		t.Error("the programs are not found")
	}
	w.start()
	w.fill(1, nil)
	w.reconcile()
	w.direct(&w.client.Machine, true)
}

// TestRenewed has Run renew the lease, after it has failed for a while, too.
func TestRenewed(t *testing.T) {
	w := serve(t, 1, nil)
	own, err := w.objects.Lease.Clone()
	w.check(err)
	defer own.Close()
	until := func() (t uint64) { w.check(own.Lookup(uint32(0), &t)); return t }
	w.check(w.objects.Lease.Put(uint32(0), uint64(1)))
	w.direct(&w.client.Machine, false)
	ctx, cancel := context.WithCancel(t.Context())
	lease := w.objects.Lease
	broken, err := lease.Clone()
	w.check(err)
	w.check(broken.Close())
	w.objects.Lease = broken
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	time.Sleep(100 * time.Millisecond) // most likely it has failed by then
	w.mu.Lock()
	w.objects.Lease = lease
	w.mu.Unlock()
	for range 2 {
		before := until()
		for start := time.Now(); until() <= before; time.Sleep(10 * time.Millisecond) {
			if time.Since(start) > time.Minute {
				t.Fatal("the lease is not renewed")
			}
		}
	}
	cancel()
	<-done
	w.direct(&w.client.Machine, true)
}
