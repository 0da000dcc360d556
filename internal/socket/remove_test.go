// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// container is how a process differs that is not the one that has attached the programs.
type container struct {
	mounts       map[string]string // sources of directories
	capabilities []uint
}

const pinsOfNode = "/sys/fs/bpf"

var all = []uint{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON}

// run runs do in the container, and in a network namespace.
func (c container) run(t *testing.T, netns int, do func() error) error {
	t.Helper()
	root := t.TempDir()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends
		err := c.enter(netns, root)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

func (c container) enter(netns int, root string) error {
	if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("container", root, "tmpfs", 0, ""); err != nil {
		return err
	}
	for target, source := range c.mounts {
		if err := os.MkdirAll(root+target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, root+target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	if err := unix.Chroot(root); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for _, capability := range c.capabilities {
		data[capability/32].Permitted |= 1 << (capability % 32)
	}
	data[0].Effective, data[1].Effective = data[0].Permitted, data[1].Permitted
	return unix.Capset(&header, &data[0])
}

// TestRemove removes the programs from containers, where Remove succeeds only if they are gone. Those of another node,
// for which this node's network namespace is a pod's, remain.
func TestRemove(t *testing.T) {
	w := serve(t, 1, nil)
	other := serve(t, 1, nil)
	other.name(w.node, 3)
	w.check(other.scan())
	other.direct(&w.node.Machine, true)
	const proc = "/proc"
	for name, c := range map[string]struct {
		container
		removes bool
	}{
		"pins, as the chart has them":         {container{map[string]string{proc: proc, pinsOfNode: pinsOfNode}, all[:1]}, true},
		"pins at /host, as kubectl debug has": {container{map[string]string{proc: proc, "/host" + pinsOfNode: pinsOfNode}, all[:1]}, true},
		"no pins":                             {container{map[string]string{proc: proc}, all}, true},
		"neither pins nor rights":             {container{map[string]string{proc: proc}, all[:1]}, false},
		"no pins, and CAP_BPF":                {container{map[string]string{proc: proc}, []uint{unix.CAP_NET_ADMIN, unix.CAP_BPF}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w.reconcile()
			w.direct(&w.client.Machine, true)
			w.check(w.Close()) // as if the process had been killed
			remove := func() error { return c.run(t, w.node.FD(), func() error { return Remove(0) }) }
			if err := remove(); (err == nil) != c.removes {
				t.Errorf("error %v, should remove: %t", err, c.removes)
			}
			w.direct(&w.client.Machine, !c.removes)
			other.direct(&other.client.Machine, true)
			w.check(Remove(w.node.FD()))
			w.direct(&w.client.Machine, false)
			if err := remove(); err != nil {
				t.Errorf("there is nothing to remove: %v", err)
			}
			w.start()
		})
	}
}

// TestRemoveUnasked removes programs that do not tell the process that they are attached: it is in another cgroup, as with
// nsenter from the host into a node of kind, or connect4 is not attached any more.
func TestRemoveUnasked(t *testing.T) {
	w := newWorld(t)
	enter := func(cgroup string) {
		w.check(os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o600))
	}
	removed := func() {
		t.Helper()
		w.check(container{map[string]string{"/proc": "/proc"}, all}.run(t, w.node.FD(), func() error { return Remove(0) }))
	}
	root := w.options.CGroup
	w.check(w.Close())
	var err error
	w.options.CGroup, err = os.MkdirTemp(root, "slipstream-test-") // of its own, beside what a killed run has left
	w.check(err)
	t.Cleanup(func() { _ = os.Remove(w.options.CGroup) })
	w.start()
	w.fill(1, nil)
	w.reconcile()
	enter(w.options.CGroup)
	defer enter(root)
	w.direct(&w.client.Machine, true)
	w.check(w.Close())
	enter(root)
	removed()
	enter(w.options.CGroup)
	w.direct(&w.client.Machine, false)
	w.check(Remove(w.node.FD()))

	w.start()
	w.reconcile()
	w.check(w.links["connect4"].Detach())
	w.check(w.Close())
	w.connects(&w.client.Machine, frontends[1], true)
	removed()
	w.direct(&w.client.Machine, false)
	w.start()
}

// TestStartElsewhere starts where the pins of the programs that are attached cannot be seen. These would come first
// at connect(), so they are removed.
func TestStartElsewhere(t *testing.T) {
	w := serve(t, 1, nil)
	w.check(w.Close())
	c := container{map[string]string{"/proc": "/proc", "/cgroup": w.options.CGroup, pinsOfNode: t.TempDir()}, all}
	w.check(c.run(t, w.node.FD(), func() error {
		b, err := New(Options{CGroup: "/cgroup"})
		if err != nil {
			return err
		}
		return b.Close()
	}))
	w.direct(&w.client.Machine, false)
	w.start()
}
