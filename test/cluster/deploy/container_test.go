// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/moby/profiles/apparmor"
	"golang.org/x/sys/unix"
)

// container runs a program as a container engine runs the container of a pod with hostNetwork,
// for what matters to a Service proxy: root file system, mounts, capabilities, no way to gain
// privileges, and the kernel's settings read-only.
type container struct {
	Root         string               // the root file system; see prepare
	ReadOnly     bool                 // the root file system
	Mounts       map[string]hostMount // by their path in the container
	Capabilities []int                // all that the program has (unix.CAP_...)
	Privileged   bool                 // may write the kernel's settings
	AppArmor     string               // the profile, if any
	Command, Env []string
}

// hostMount is a file or directory of the machine.
type hostMount struct {
	Source   string
	ReadOnly bool
}

// appArmor is the profile that container engines give a container that is not privileged, loaded here; none if the
// kernel has no AppArmor, as that of "make test". Debian's has it: see TestSocketsOff.
var appArmor = sync.OnceValues(func() (profile string, err error) {
	if enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled"); !strings.HasPrefix(string(enabled), "Y") {
		return "", nil
	}
	profile = "slipstream-test"
	return profile, apparmor.InstallDefault(profile)
})

// containerVariable has the container, in the environment of its first process.
const containerVariable = "DEPLOY_TEST_CONTAINER"

// prepare makes the places in the root file system where something is mounted.
func (c *container) prepare() error {
	for _, system := range []string{"proc", "sys"} {
		if err := os.MkdirAll(filepath.Join(c.Root, system), 0o755); err != nil {
			return err
		}
	}
	for path, m := range c.Mounts {
		info, err := os.Stat(m.Source)
		if err != nil {
			return err
		}
		place := filepath.Join(c.Root, path)
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

// cmd is a command that runs the container in the network namespace in which it is
// started. It needs root.
func (c *container) cmd() (*exec.Cmd, error) {
	text, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{containerVariable + "=" + string(text)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	return cmd, nil
}

// initContainer does not return in a container, of which it is the first process.
func initContainer() {
	text := os.Getenv(containerVariable)
	if text == "" {
		return
	}
	var c container
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.enter()
	}
	fmt.Fprintln(os.Stderr, "container:", err)
	os.Exit(125)
}

func (c *container) enter() error {
	runtime.LockOSThread()
	if err := c.mount(); err != nil {
		return err
	}
	// AppArmor's rules are about paths from the root of the mount namespace, which chroot does not change.
	if err := errors.Join(unix.Chdir(c.Root), unix.PivotRoot(".", "."), unix.Unmount(".", unix.MNT_DETACH)); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if c.AppArmor != "" {
		if err := os.WriteFile("/proc/thread-self/attr/apparmor/exec", []byte("exec "+c.AppArmor), 0); err != nil {
			return err
		}
	}
	if err := keepCapabilities(c.Capabilities); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return fmt.Errorf("exec %s: %w", c.Command[0], unix.Exec(c.Command[0], c.Command, c.Env))
}

func (c *container) mount() error {
	const quiet = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	proc, sys, settings := filepath.Join(c.Root, "proc"), filepath.Join(c.Root, "sys"), filepath.Join(c.Root, "proc/sys")
	errs := []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount(c.Root, c.Root, "", unix.MS_BIND, ""),
		unix.Mount("proc", proc, "proc", quiet, ""),
		unix.Mount("sysfs", sys, "sysfs", quiet, ""),
		bind(settings, settings, !c.Privileged), bind(sys, sys, !c.Privileged),
	}
	for path, m := range c.Mounts {
		errs = append(errs, bind(m.Source, filepath.Join(c.Root, path), m.ReadOnly))
	}
	if c.ReadOnly {
		errs = append(errs, unix.Mount("", c.Root, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

func bind(source, target string, readOnly bool) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
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
