// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
)

// kernelNames are the values of -kernel.
var kernelNames = append([]string{"all", "uml", "host"}, uml.Versions...)

// kernel is a kernel to run tests on.
type kernel struct {
	name  string // "host", or one of uml.Versions
	label string // with the release, such as "uml 6.12.117"
	path  string // of a UML kernel; empty for the host
}

// findKernels returns the kernels that the options select, and builds those that are
// missing. One that cannot be built on this machine is an error in CI, and where -kernel
// names it; one that does not boot is always an error.
func findKernels(ctx context.Context, opts options, packages []testPackage, stderr io.Writer) ([]kernel, error) {
	var found []kernel
	if opts.kernel == "all" || opts.kernel == "host" {
		release, err := os.ReadFile("/proc/sys/kernel/osrelease")
		if err != nil {
			return nil, err
		}
		found = append(found, kernel{name: "host", label: "host " + strings.TrimSpace(string(release))})
	}
	if !slices.ContainsFunc(packages, func(p testPackage) bool { return p.kernel }) {
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
		release, err := uml.Machine{Kernel: path}.Check(ctx)
		if err != nil {
			return nil, err
		}
		found = append(found, kernel{name: version, label: "uml " + release, path: path})
	}
	return found, nil
}

// errUnavailable means that a kernel is missing and cannot be built on this machine.
var errUnavailable = errors.New("not available")

// buildKernel returns the path of a kernel. build.sh builds it if none is named or cached.
func buildKernel(ctx context.Context, script, version string, stderr io.Writer) (string, error) {
	cmd := exec.CommandContext(ctx, script, version)
	cmd.Stderr = stderr
	out, err := cmd.Output()
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() == 3 {
		return "", fmt.Errorf("kernel %s: %w, see the output of build.sh", version, errUnavailable)
	}
	if err != nil {
		return "", fmt.Errorf("kernel %s: %s: %w", version, script, err)
	}
	return strings.TrimSpace(string(out)), nil
}
