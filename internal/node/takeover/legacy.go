// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// removeXChains removes the owner's chains from a table of iptables-legacy, which the
// kernel calls x_tables.
func (o Options) removeXChains(f *xFamily, name string) {
	what := fmt.Sprintf("%s table %s", f.command, name)
	tables, err := f.tables()
	if err != nil {
		o.failed(fmt.Errorf("looking for %s's chains in %s: %w", o.owner.Name, what, err))
		return
	}
	if !slices.Contains(tables, name) {
		return
	}
	plan, err := f.removeChains(name, o.owner)
	if err != nil {
		o.failed(fmt.Errorf("removing %s's chains from %s: %w", o.owner.Name, what, err))
		return
	}
	for _, k := range plan.kept {
		o.stays(k.describe(o.owner.Name, what))
	}
	if plan.any() {
		o.removed(fmt.Sprintf("%d chains of %s", plan.chains, what))
	}
}

// removeChains takes an owner's chains from a table, and says which. Nobody is kept
// waiting where there are none.
func (f *xFamily) removeChains(name string, owner *Owner) (*xPlan, error) {
	s, err := f.open()
	if err != nil {
		return nil, err
	}
	defer s.close()
	plan, err := s.settled(name, owner, func(*xPlan) error { return nil })
	if err != nil || !plan.any() {
		return plan, err
	}
	unlock, err := lockXTables()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return s.settled(name, owner, func(p *xPlan) error {
		if !p.any() {
			return nil
		}
		return s.replace(p)
	})
}

// settled reads a table and does something about it; again when somebody who did not
// take the lock changed it meanwhile.
func (s *xSocket) settled(name string, owner *Owner, do func(*xPlan) error) (plan *xPlan, err error) {
	for range 5 {
		var t *xTable
		if t, err = s.read(name); err == nil {
			plan = planX(t, owner)
			err = do(plan)
		}
		if !errors.Is(err, unix.EAGAIN) {
			return plan, err
		}
	}
	return nil, errors.New("somebody else keeps changing it")
}

// xLock is the file that whoever changes iptables-legacy locks.
const xLock = "/run/xtables.lock"

// lockTimeout is how long to wait for it.
const lockTimeout = 5 * time.Second

// lockXTables takes the lock of iptables-legacy. Where its file cannot be made, as in a
// container whose file system is read-only and which is not given the node's, it is
// done without: the kernel itself notices nearly all of what others change meanwhile.
func lockXTables() (unlock func(), err error) {
	file, err := os.OpenFile(xLock, os.O_CREATE|os.O_RDONLY|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) || time.Now().After(deadline) {
			file.Close()
			return nil, fmt.Errorf("somebody else holds %s: %w", xLock, err)
		}
	}
}

// tables are the family's tables that this network namespace has. To ask the kernel for
// any other would make it.
func (f *xFamily) tables() ([]string, error) {
	text, err := os.ReadFile("/proc/thread-self/net/" + f.names)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the kernel has no x_tables
	}
	return strings.Fields(string(text)), err
}
