// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// podman is the engine, with a storage of its own.
type podman struct {
	*testing.T
	dir string
}

func newPodman(t *testing.T) *podman {
	t.Helper()
	for _, command := range []string{"podman", "runc"} {
		if _, err := exec.LookPath(command); err != nil {
			t.Skipf("NOT RUN: %v (Debian's packages are podman and runc)", err)
		}
	}
	e := &podman{t, t.TempDir()}
	t.Cleanup(func() { // storage is mounted within the directory
		if _, err := e.try("system", "reset", "--force"); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *podman) try(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	args = append([]string{
		"--root=" + filepath.Join(e.dir, "root"), "--runroot=" + filepath.Join(e.dir, "run"), "--tmpdir=" + filepath.Join(e.dir, "tmp"),
		"--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none", "--runtime=runc",
	}, args...)
	out, err := exec.CommandContext(ctx, "podman", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("podman %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

func (e *podman) run(args ...string) string {
	e.Helper()
	out, err := e.try(args...)
	if err != nil {
		e.Fatal(err)
	}
	return out
}

// limits are within those of machines that do not let root raise them.
var limits = []string{"--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"}

// build builds the image as its Dockerfile says.
func (e *podman) build() (image string) {
	e.Helper()
	root, err := rootFS()
	if err != nil {
		e.Fatal(err)
	}
	image = "localhost/slipstream:test"
	e.run("build", "--quiet", "--isolation=chroot", "--file=../../../deploy/Dockerfile", "--tag="+image, root)
	return image
}

// TestImage builds the image and runs it under both names.
func TestImage(t *testing.T) {
	e := newPodman(t)
	image := e.build()
	run := append([]string{"run", "--rm", "--network=none", "--cap-drop=ALL", "--read-only"}, limits...)
	if out := e.run(append(run, image, "version")...); !strings.HasPrefix(out, "slipstream ") {
		t.Errorf("version: %q", out)
	}
	if out := e.run(append(run, "--entrypoint=/usr/local/bin/kube-proxy", image, "--help")...); !strings.Contains(out, "--hostname-override") {
		t.Errorf("kube-proxy --help: %q", out)
	}
	if _, err := e.try(append(run, "--entrypoint=/bin/sh", image)...); err == nil {
		t.Error("there is a shell")
	}
}

// TestEngine runs the DaemonSet's container with the engine, its default filter of system
// calls included: a Service works, and the readiness probe is content.
func TestEngine(t *testing.T) {
	e := newPodman(t)
	image := e.build()
	c := newCluster(t)
	all := chart(t, "")
	c.applyAll(all)
	client, address := c.service()
	p := newPod(c, all, "slipstream")
	args := append([]string{
		"run", "--detach", "--name=slipstream", "--security-opt=no-new-privileges", "--cap-drop=ALL",
		fmt.Sprintf("--network=ns:/proc/%d/fd/%d", os.Getpid(), c.node.FD()),
	}, limits...)
	security := p.main().SecurityContext
	for _, name := range security.Capabilities.Add {
		args = append(args, "--cap-add="+string(name))
	}
	if *security.ReadOnlyRootFilesystem {
		args = append(args, "--read-only", "--read-only-tmpfs=false")
	}
	for path, m := range p.run.Mounts {
		options := ""
		if m.ReadOnly {
			options = ":ro"
		}
		args = append(args, "--volume="+m.Source+":"+path+options)
	}
	for _, v := range p.run.Env {
		args = append(args, "--env="+v)
	}
	args = append(args, "--entrypoint="+p.run.Command[0], image)
	e.run(append(args, p.run.Command[1:]...)...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(e.run("logs", "slipstream"))
		}
		e.run("rm", "--force", "--time=1", "slipstream")
	})
	c.await("the readiness probe", func() error { return p.probe(p.main().ReadinessProbe) })
	c.await("the Service", func() error { _, err := client.Connect(lab.TCP, address); return err })
}
