// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
)

// hostKernel is the name of the machine's own kernel.
const hostKernel = "host"

// kernel is one to run tests on.
type kernel struct {
	name    string // hostKernel, or one of uml.Versions
	release string
	path    string // of a User Mode Linux kernel
}

func (k kernel) uml() bool { return k.name != hostKernel }

func (k kernel) String() string {
	if k.uml() {
		return "uml " + k.release
	}
	return "host " + k.release
}

// kernels is a list of them, which prints as such.
type kernels []kernel

func (ks kernels) String() string {
	names := make([]string, len(ks))
	for i, k := range ks {
		names[i] = k.String()
	}
	return strings.Join(names, ", ")
}

// kernelNames are what -kernel takes.
func kernelNames() []string {
	return append([]string{"all", "uml", hostKernel}, uml.Versions...)
}

// findKernels returns the kernels that the options ask for. It may build. A kernel that is
// not there and cannot be built on this machine is an error only in CI, or if it is the
// only one asked for; one that does not boot is always an error.
func findKernels(ctx context.Context, opts options, packages []testPackage, stderr io.Writer) (kernels, error) {
	var found kernels
	if opts.kernel == "all" || opts.kernel == hostKernel {
		release, err := hostRelease()
		if err != nil {
			return nil, err
		}
		found = append(found, kernel{name: hostKernel, release: release})
	}
	if !anyKernelTest(packages) {
		return found, nil
	}
	for _, version := range uml.Versions {
		if opts.kernel != "all" && opts.kernel != "uml" && opts.kernel != version {
			continue
		}
		path, err := buildKernel(ctx, opts.script, version, stderr)
		if errors.Is(err, errUnavailable) && !opts.ci && opts.kernel == "all" {
			banner(stderr, "NO KERNEL "+version+": its tests run on the other kernels alone", err.Error())
			continue
		}
		if err != nil {
			return nil, err
		}
		machine := uml.Machine{Kernel: path}
		if err := machine.Check(ctx); err != nil {
			return nil, err
		}
		release, err := machine.Version(ctx)
		if err != nil {
			return nil, err
		}
		found = append(found, kernel{name: version, release: release, path: path})
	}
	return found, nil
}

func anyKernelTest(packages []testPackage) bool {
	for _, p := range packages {
		if p.kernel {
			return true
		}
	}
	return false
}

// errUnavailable means that a kernel is not there and cannot be built on this machine.
var errUnavailable = errors.New("not available")

// buildKernel returns the path of a kernel, which build.sh builds if none is named or
// cached.
func buildKernel(ctx context.Context, script, version string, stderr io.Writer) (string, error) {
	cmd := exec.CommandContext(ctx, script, version)
	cmd.Stderr = stderr
	out, err := cmd.Output()
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() == 3 {
		return "", fmt.Errorf("kernel %s: %w, see what build.sh said", version, errUnavailable)
	}
	if err != nil {
		return "", fmt.Errorf("kernel %s: %s: %w", version, script, err)
	}
	return strings.TrimSpace(string(out)), nil
}

func hostRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("uname: %w", err)
	}
	return unix.ByteSliceToString(name.Release[:]), nil
}

// banner prints what nobody shall overlook.
func banner(w io.Writer, title, text string) {
	line := strings.Repeat("=", 78)
	fmt.Fprintf(w, "%s\n%s\n%s\n%s\n", line, title, text, line)
}
