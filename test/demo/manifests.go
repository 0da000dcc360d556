// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/slipstream-proxy/slipstream/examples"
)

// Where the manifests are, in the examples and for the reader.
const (
	demoDir  = "demo"
	stepsDir = "demo/steps"
	shownDir = "examples/demo"
)

// manifests is the temporary directory that slipstream watches.
type manifests struct{ dir string }

// newManifests makes the directory and fills it with the first versions.
func newManifests() (*manifests, error) {
	dir, err := os.MkdirTemp("", "slipstream-demo-")
	if err != nil {
		return nil, err
	}
	m := &manifests{dir}
	if _, err := m.copy(demoDir); err != nil {
		return nil, errors.Join(err, m.remove())
	}
	return m, nil
}

func (m *manifests) remove() error { return os.RemoveAll(m.dir) }

// copy puts the files of a folder of the examples in place. Each is written under
// another name and then renamed, so that nobody sees half of it; the time just
// before the last one's rename is returned.
func (m *manifests) copy(from string) (renamed time.Time, err error) {
	entries, err := fs.ReadDir(examples.Demo, from)
	if err != nil {
		return renamed, err
	}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		data, err := examples.Demo.ReadFile(path.Join(from, e.Name()))
		if err != nil {
			return renamed, err
		}
		hidden := filepath.Join(m.dir, "."+e.Name()+".new")
		if err := os.WriteFile(hidden, data, 0o644); err != nil {
			return renamed, err
		}
		renamed = time.Now()
		if err := os.Rename(hidden, filepath.Join(m.dir, e.Name())); err != nil {
			return renamed, err
		}
	}
	return renamed, nil
}
