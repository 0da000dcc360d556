// SPDX-License-Identifier: Apache-2.0

package kubelets

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"golang.org/x/sys/unix"
	imageutils "k8s.io/kubernetes/test/utils/image"
)

// images returns the path of the archive with all images, and the name of CoreDNS's. It is made once, beside the
// programs that are in it.
func (c *Cluster) images(ctx context.Context, log upstream.Log) (path, coredns string, err error) {
	script := filepath.Join(c.dir, "images.sh")
	text, err := os.ReadFile(script)
	if err != nil {
		return "", "", err
	}
	version, _, _ := strings.Cut(filepath.Base(filepath.Dir(c.Programs["coredns"])), "-")
	coredns = "registry.k8s.io/coredns/coredns:" + version
	names := []string{coredns}
	for _, image := range imageutils.GetImageConfigs() {
		names = append(names, image.GetE2EImage())
	}
	slices.Sort(names)
	programs := []string{c.Programs["agnhost"], c.Programs["regression-issue-74839"], c.Programs["coredns"]}
	// The programs' paths tell apart what they were built of.
	content := append(text, strings.Join(append(programs, names...), " ")...)
	path = filepath.Join(filepath.Dir(programs[0]), fmt.Sprintf("images-%.6x.tar", sha256.Sum256(content)))
	if _, err := os.Stat(path); err == nil {
		return path, coredns, nil
	}
	if log != nil {
		log("making images of Debian's packages, once, into %s", path)
	}
	cmd := exec.CommandContext(ctx, "bash", append([]string{script, path}, programs...)...)
	cmd.Stdin = strings.NewReader(strings.Join(names, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("images.sh: %w: %s", err, out)
	}
	return path, coredns, nil
}

// makeCgroups makes a cgroup in each hierarchy, of version 1 or 2, and returns the paths.
func makeCgroups(name string) (paths []string, err error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup" || f[2] == "cgroup2" {
			path := filepath.Join(f[1], name)
			err = errors.Join(err, os.MkdirAll(path, 0o755))
			paths = append(paths, path)
		}
	}
	return paths, err
}

// removeCgroups removes cgroups with all below, as soon as their processes, which have been killed, are gone.
func removeCgroups(paths []string) error {
	var err error
	for range 100 {
		err = nil
		for _, path := range paths {
			err = errors.Join(err, removeCgroup(path))
		}
		if err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

func removeCgroup(path string) error {
	entries, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(path, e.Name())))
		}
	}
	return errors.Join(err, unix.Rmdir(path))
}
