// SPDX-License-Identifier: Apache-2.0

// Package upstream builds programs of Kubernetes, and runs etcd and kube-apiserver as child processes in
// network namespaces.
//
// They are built from Go modules, in the versions that the go.mod files of the folders of [Release]
// require, when they are first needed. See [Release.Binary].
package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// Release is a release of Kubernetes that can be built: the folder of test/cluster/oracle with the
// module that requires it.
type Release string

// The releases.
const (
	Current  Release = "tools"
	Previous Release = "previous"
	Oldest   Release = "oldest" // that Slipstream supports

	// What else a cluster with kubelets has. The first is of the same release as Current.
	Nodes   Release = "nodes"
	CoreDNS Release = "coredns"
)

// Programs are the names that [Release.Binary] knows, by release.
var Programs = map[Release][]string{
	Current:  {"kube-apiserver", "kube-proxy", "etcd"},
	Previous: {"kube-proxy"},
	Oldest:   {"kube-apiserver"},
	Nodes: {"kubelet", "kube-controller-manager", "kube-scheduler", "kubectl", "agnhost", "regression-issue-74839",
		"ginkgo", "e2e.test"},
	CoreDNS: {"coredns"},
}

// packageOf returns the Go package of a program.
func packageOf(name string) string {
	switch name {
	case "etcd":
		return "go.etcd.io/etcd/server/v3"
	case "ginkgo":
		return "github.com/onsi/ginkgo/v2/ginkgo"
	case "agnhost", "regression-issue-74839":
		return "k8s.io/kubernetes/test/images/" + name
	case "coredns", "e2e.test":
		return "."
	}
	return "k8s.io/kubernetes/cmd/" + name
}

// Log is called with one line about what takes long. It may be nil.
type Log func(format string, args ...any)

// Binary returns the path of one of the release's programs. It is built, which takes
// minutes, unless it is in the folder slipstream/oracle of the user's cache directory, where
// each content of the release's module has a folder. Several processes may build at the same
// time.
func (r Release) Binary(ctx context.Context, name string, log Log) (string, error) {
	// The module is found from anywhere in the repository.
	root, err := Go(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/slipstream-proxy/slipstream")
	if err != nil {
		return "", fmt.Errorf("not in a module of this repository: %w", err)
	}
	module := filepath.Join(root, "test", "cluster", "oracle", string(r))
	of := map[bool]string{true: "github.com/coredns/coredns", false: "k8s.io/kubernetes"}[r == CoreDNS]
	version, err := Go(ctx, module, "list", "-m", "-f", "{{.Version}}", of)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(module, "*"))
	if err != nil {
		return "", err
	}
	var content []byte
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		content = append(content, b...)
	}
	dir := filepath.Join(cache, "slipstream", "oracle", fmt.Sprintf("%s-%.6x", version, sha256.Sum256(content)))
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if log != nil {
		log("building %s of %s %s, once, into %s: this takes minutes", name, of, version, dir)
	}
	part := fmt.Sprintf("%s.%d.part", path, os.Getpid()) // renamed when it is complete
	defer os.Remove(part)
	flags := "-s -w -X k8s.io/component-base/version.gitVersion=" + version
	build := []string{"build"}
	if strings.HasSuffix(name, ".test") {
		build = []string{"test", "-c", "-vet=off"} // vet would look at all packages that it imports
	}
	build = append(build, "-buildvcs=false", "-trimpath", "-ldflags", flags, "-o", part, packageOf(name))
	if _, err := Go(ctx, module, build...); err != nil {
		return "", fmt.Errorf("build %s of %s %s: %w", name, of, version, err)
	}
	return path, os.Rename(part, path)
}

// Go runs the go command in a directory and returns its standard output.
func Go(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, lab.Tail(stderr.String(), 20))
	}
	return strings.TrimSpace(string(out)), nil
}

// IPTablesPath is a PATH with which a program finds one variant of the iptables commands
// ("legacy" or "nft") under the names that kube-proxy calls, by links in dir.
func IPTablesPath(dir, variant string) (string, error) {
	dir = filepath.Join(dir, "iptables-"+variant)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(family + "-" + variant + suffix)
			if err != nil {
				return "", fmt.Errorf("%w (Debian's package is iptables; test/deps.sh installs it)", err)
			}
			if err := os.Symlink(path, filepath.Join(dir, family+suffix)); err != nil && !os.IsExist(err) {
				return "", err
			}
		}
	}
	return dir + string(os.PathListSeparator) + os.Getenv("PATH"), nil
}
