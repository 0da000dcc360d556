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

// Kinds of kernels.
const (
	kindHost = "host"
	kindUML  = "uml"
)

// kernel is one to run tests on.
type kernel struct {
	kind    string // kindHost or kindUML
	release string
	path    string // of the UML kernel
}

func (k kernel) String() string { return k.kind + " " + k.release }

// kernels is a list of them, which prints as such.
type kernels []kernel

func (ks kernels) String() string {
	names := make([]string, len(ks))
	for i, k := range ks {
		names[i] = k.String()
	}
	return strings.Join(names, ", ")
}

// umlKernel returns the User Mode Linux kernel, or nil if there is none.
func (ks kernels) uml() *kernel {
	for i := range ks {
		if ks[i].kind == kindUML {
			return &ks[i]
		}
	}
	return nil
}

// findKernels returns those that the options ask for and that there are. It may build.
func findKernels(ctx context.Context, opts options, packages []testPackage, stderr io.Writer) (kernels, error) {
	var found kernels
	if opts.kernel != "uml" {
		release, err := hostRelease()
		if err != nil {
			return nil, err
		}
		found = append(found, kernel{kind: kindHost, release: release})
	}
	if opts.kernel == "host" {
		return found, nil
	}
	path, err := uml.Find(ctx, opts.script)
	if errors.Is(err, uml.ErrNoKernel) && opts.build && anyKernelTest(packages) {
		path, err = buildKernel(ctx, opts.script, stderr)
	}
	if err != nil {
		// A kernel that is named but is none is an error; that there is none is not,
		// as long as there is another to run on.
		if opts.kernel == "uml" || !errors.Is(err, uml.ErrNoKernel) {
			return nil, err
		}
		banner(stderr, "NO USER MODE LINUX KERNEL: kernel tests run on the host alone", err.Error())
		return found, nil
	}
	version, err := uml.Machine{Kernel: path}.Version(ctx)
	if err != nil {
		return nil, err
	}
	return append(found, kernel{kind: kindUML, release: version, path: path}), nil
}

func anyKernelTest(packages []testPackage) bool {
	for _, p := range packages {
		if p.kernel {
			return true
		}
	}
	return false
}

// buildKernel has build.sh build the kernel. A failure is an [uml.ErrNoKernel].
func buildKernel(ctx context.Context, script string, stderr io.Writer) (string, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "", fmt.Errorf("%w (building it needs apt-get)", uml.ErrNoKernel)
	}
	fmt.Fprintln(stderr, "runner: no User Mode Linux kernel is named or cached: building one, which happens once")
	cmd := exec.CommandContext(ctx, script)
	cmd.Stderr = stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%w (%s: %v)", uml.ErrNoKernel, script, err)
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
