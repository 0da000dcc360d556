// SPDX-License-Identifier: Apache-2.0

package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// fieldPaths returns the paths of all settings in a type.
func fieldPaths(prefix string, t reflect.Type) (all []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		ours := strings.Contains(f.Type.PkgPath(), "k8s.io/kube-proxy") || strings.Contains(f.Type.PkgPath(), "slipstream")
		more := strings.HasSuffix(f.Type.Name(), "Configuration") || strings.HasSuffix(f.Type.Name(), "Options")
		switch {
		case f.Anonymous && name == "":
			all = append(all, fieldPaths(prefix, f.Type)...)
		case f.Type.Kind() == reflect.Struct && (ours || more):
			all = append(all, fieldPaths(prefix+name+".", f.Type)...)
		default:
			all = append(all, prefix+name)
		}
	}
	return all
}

// TestDocs checks that docs/configuration.md has a row for each field, and no other rows.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for heading, typ := range map[string]reflect.Type{
		"\n## KubeProxyConfiguration\n":  reflect.TypeFor[Config]().Field(0).Type,
		"\n## SlipstreamConfiguration\n": reflect.TypeFor[SlipstreamConfiguration](),
	} {
		_, section, ok := strings.Cut(string(text), heading)
		if !ok {
			t.Fatalf("there is no %q", heading)
		}
		section, _, _ = strings.Cut(section, "\n## ")
		rows := map[string]bool{}
		for line := range strings.Lines(section) {
			if path, ok := strings.CutPrefix(line, "| `"); ok {
				path, _, _ = strings.Cut(path, "`")
				rows[path] = true
			}
		}
		paths := fieldPaths("", typ)
		if len(paths) < 9 {
			t.Fatalf("there are only %q", paths)
		}
		for _, path := range paths {
			if !rows[path] {
				t.Errorf("no row for %s", path)
			}
			delete(rows, path)
		}
		for path := range rows {
			t.Errorf("a row for %s, which is no field", path)
		}
	}
}
