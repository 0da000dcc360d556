// SPDX-License-Identifier: Apache-2.0

// Package container runs a program as a container engine runs the container of a pod
// with hostNetwork, for what matters to a Service proxy: root file system, mounts,
// capabilities, no way to gain privileges, and the kernel's settings read-only.
//
// A program that starts containers calls [Init] first: it is their first process as well.
package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spec says what to run, and in what.
type Spec struct {
	// Root is the root file system. What is mounted has to have a place in it: see
	// [Prepare].
	Root string
	// ReadOnly makes the root file system read-only.
	ReadOnly bool
	// Mounts are files and directories of the machine, by their path in the container.
	Mounts map[string]Mount
	// Capabilities are numbers (unix.CAP_...) of all that the program has.
	Capabilities []int
	// Command and Env are the program.
	Command, Env []string
}

// Mount is a file or directory of the machine's.
type Mount struct {
	Source   string
	ReadOnly bool
}

// variable carries a Spec to the container's first process.
const variable = "DEPLOY_TEST_CONTAINER"

// system are the file systems that an engine mounts.
var system = []struct{ path, kind string }{{"/proc", "proc"}, {"/sys", "sysfs"}}

// Prepare makes the places in the root file system where something is mounted.
func (s *Spec) Prepare() error {
	for _, m := range system {
		if err := os.MkdirAll(filepath.Join(s.Root, m.path), 0o755); err != nil {
			return err
		}
	}
	for path, m := range s.Mounts {
		info, err := os.Stat(m.Source)
		if err != nil {
			return err
		}
		place := filepath.Join(s.Root, path)
		if info.IsDir() {
			err = os.MkdirAll(place, 0o755)
		} else if err = os.MkdirAll(filepath.Dir(place), 0o755); err == nil {
			err = os.WriteFile(place, nil, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Cmd is a command that runs the container in the network namespace in which it is
// started. It needs root.
func (s *Spec) Cmd() (*exec.Cmd, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{variable + "=" + string(text)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	return cmd, nil
}

// Init does not return in a container.
func Init() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var s Spec
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		err = s.enter()
	}
	fmt.Fprintln(os.Stderr, "container:", err)
	os.Exit(125)
}

// enter becomes the program.
func (s *Spec) enter() error {
	runtime.LockOSThread()
	if err := s.mount(); err != nil {
		return err
	}
	if err := unix.Chroot(s.Root); err != nil {
		return fmt.Errorf("chroot: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	if err := keepCapabilities(s.Capabilities); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return fmt.Errorf("exec %s: %w", s.Command[0], unix.Exec(s.Command[0], s.Command, s.Env))
}

func (s *Spec) mount() error {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	errs := []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(s.Root, s.Root, "", unix.MS_BIND, ""),
	}
	for _, m := range system {
		place := filepath.Join(s.Root, m.path)
		errs = append(errs, unix.Mount(m.kind, place, m.kind, quiet, ""))
	}
	settings := filepath.Join(s.Root, "proc/sys")
	errs = append(errs, bind(settings, settings, true), bind(filepath.Join(s.Root, "sys"), filepath.Join(s.Root, "sys"), true))
	for path, m := range s.Mounts {
		errs = append(errs, bind(m.Source, filepath.Join(s.Root, path), m.ReadOnly))
	}
	if s.ReadOnly {
		errs = append(errs, unix.Mount("", s.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

func bind(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("%s: %w", target, err)
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

// keepCapabilities takes all others away, also from what is executed. What this machine
// does not have cannot be kept.
func keepCapabilities(keep []int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have, data [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("get capabilities: %w", err)
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		kept := false
		for _, k := range keep {
			kept = kept || k == c
		}
		if kept {
			data[c/32].Permitted |= have[c/32].Permitted & (1 << (c % 32))
			data[c/32].Effective = data[c/32].Permitted
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return nil
}
