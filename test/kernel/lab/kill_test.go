// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// victimVariable makes this test binary the victim of TestKilled.
const victimVariable = "SLIPSTREAM_LAB_TEST_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(victimVariable) != "" {
		if err := beVictim(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// victim is what the killed process has printed about itself.
type victim struct {
	Namespaces []string
	Child      int
}

// beVictim makes a lab with a child process and a link to the witness, the
// namespace at file descriptor 3, and waits to be killed.
func beVictim() error {
	unix.CloseOnExec(3) // the child must not hold the witness
	l, err := lab.New()
	if err != nil {
		return err
	}
	n, err := l.Node("n", lab.NodeOptions{
		Addresses: prefixList("192.168.100.11/24", "fd00:100::11/64"),
		PodCIDRs:  prefixList("10.244.1.0/24", "fd00:244:1::/64"),
	})
	if err != nil {
		return err
	}
	p, err := n.Pod("p", prefixList("10.244.1.5/32")[0].Addr())
	if err != nil {
		return err
	}
	if _, err := p.Serve(lab.TCP, wildcard(80)); err != nil {
		return err
	}
	child, err := p.Start(exec.Command("sleep", "300"))
	if err != nil {
		return err
	}
	err = n.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "towitness"
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNamespace = "witness", netlink.NsFd(3)
		return netlink.LinkAdd(veth)
	})
	if err != nil {
		return err
	}
	v := victim{Child: child.PID()}
	for _, m := range []*lab.Machine{&n.Machine, &p.Machine} {
		v.Namespaces = append(v.Namespaces, namespaceOf(m))
	}
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin) // ends also when the test dies
	return err
}

// TestKilled kills a process that has a lab, and checks that nothing of the lab is left.
func TestKilled(t *testing.T) {
	t.Parallel()
	l := kerneltest.NewLab(t)
	witness, err := l.Host("witness", prefixList("192.168.100.9/24")...)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(uintptr(witness.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "witness")
	defer file.Close()
	witnessed := func() bool {
		var found bool
		err := witness.Do(func() error {
			_, err := netlink.LinkByName("witness")
			found = err == nil
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	rootBefore := rootLinks(t)

	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimVariable+"=1")
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	watch := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	defer watch.Stop()
	var v victim
	if err := json.NewDecoder(stdout).Decode(&v); err != nil {
		t.Fatalf("the victim said nothing: %v", err)
	}

	// All is there, and the test sees it.
	if !alive(v.Child) {
		t.Error("the child does not run before the kill")
	}
	if !witnessed() {
		t.Error("the witness has no link before the kill")
	}
	if holders := holding(v.Namespaces); len(holders) == 0 {
		t.Error("nothing holds the namespaces before the kill")
	}

	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the child ends", func() bool { return !alive(v.Child) })
	var holders []string
	eventually(t, "nothing holds the namespaces", func() bool { holders = holding(v.Namespaces); return len(holders) == 0 })
	// The link's other end was in the node's namespace: the kernel takes it away
	// only when that namespace itself is gone.
	eventually(t, "the node's namespace was deleted", func() bool { return !witnessed() })
	if after := rootLinks(t); !slices.Equal(after, rootBefore) {
		t.Errorf("links of the root namespace: %v, before %v", after, rootBefore)
	}
}

// holding returns the /proc entries of threads in the namespaces and of file
// descriptors and mounts that hold them.
func holding(namespaces []string) []string {
	var holders []string
	for _, pattern := range []string{"/proc/[0-9]*/task/*/ns/net", "/proc/[0-9]*/fd/*"} {
		entries, _ := filepath.Glob(pattern)
		for _, e := range entries {
			if ns, err := os.Readlink(e); err == nil && slices.Contains(namespaces, ns) {
				holders = append(holders, e)
			}
		}
	}
	return holders
}

func rootLinks(t *testing.T) []string {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range links {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}
