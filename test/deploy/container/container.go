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
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Spec describes the program and its container.
type Spec struct {
	Root         string           // the root file system; see [Prepare]
	ReadOnly     bool             // the root file system
	Mounts       map[string]Mount // by their path in the container
	Capabilities []int            // all that the program has (unix.CAP_...)
	Command, Env []string
}

// Mount is a file or directory of the machine.
type Mount struct {
	Source   string
	ReadOnly bool
}

const variable = "DEPLOY_TEST_CONTAINER"

// Prepare makes the places in the root file system where something is mounted.
func (s *Spec) Prepare() error {
	for _, system := range []string{"proc", "sys"} {
		if err := os.MkdirAll(filepath.Join(s.Root, system), 0o755); err != nil {
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
	proc, sys, settings := filepath.Join(s.Root, "proc"), filepath.Join(s.Root, "sys"), filepath.Join(s.Root, "proc/sys")
	errs := []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(s.Root, s.Root, "", unix.MS_BIND, ""),
		unix.Mount("proc", proc, "proc", quiet, ""),
		unix.Mount("sysfs", sys, "sysfs", quiet, ""),
		bind(settings, settings, true), bind(sys, sys, true),
	}
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

// keepCapabilities drops all other capabilities, also for executed programs. Capabilities that
// this machine does not have cannot be kept.
func keepCapabilities(keep []int) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have, data [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("get capabilities: %w", err)
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(keep, c) {
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
