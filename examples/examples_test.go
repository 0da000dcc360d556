// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"io/fs"
	"os"
	"path"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/manifest"
)

// examplesDir is the folder of all examples, the demo's and others.
var examplesDir = os.DirFS(".")

// TestExamples reads every manifest of the examples with slipstream's decoder.
func TestExamples(t *testing.T) {
	objects := map[string][]string{} // by file
	err := fs.WalkDir(examplesDir, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		switch ext := path.Ext(name); ext {
		case ".md", ".go":
			return nil
		case ".yaml", ".yml", ".json":
		default:
			t.Errorf("%s: neither a manifest nor documentation", name)
			return nil
		}
		data, err := fs.ReadFile(examplesDir, name)
		if err != nil {
			return err
		}
		c := manifest.Decode(name, data)
		for _, e := range c.Errors {
			t.Error(e)
		}
		for _, w := range c.Warnings {
			t.Error(w)
		}
		for _, i := range c.Ignored {
			t.Errorf("%s: %s is ignored", name, i)
		}
		for _, o := range c.Objects {
			objects[name] = append(objects[name], source.Name(o.Object))
		}
		if len(c.Objects) == 0 {
			t.Errorf("%s: there is no object in it", name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	// The files of a step replace others of the same name.
	steps := 0
	for name, got := range objects {
		if path.Dir(path.Dir(name)) != "demo/steps" {
			continue
		}
		steps++
		if want := objects[path.Join("demo", path.Base(name))]; !slices.Equal(got, want) {
			t.Errorf("%s has %v, but the file that it replaces has %v", name, got, want)
		}
	}
	if steps != 5 {
		t.Errorf("%d files in steps, want 5", steps)
	}
}
