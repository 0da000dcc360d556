// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	baseDir  = "../../../deploy/kustomize/base"
	chartDir = "../../../deploy/helm/slipstream"

	// placeholder is the API server of the base.
	placeholder = "https://api-server.invalid:6443"
)

// objects are manifests by kind and name.
type objects map[string]*unstructured.Unstructured

func (o objects) add(t testing.TB, text []byte) {
	t.Helper()
	var u unstructured.Unstructured
	if err := yaml.UnmarshalStrict(text, &u.Object); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if len(u.Object) == 0 {
		return
	}
	key := u.GetKind() + " " + u.GetName()
	if o[key] != nil {
		t.Errorf("two of %s", key)
	}
	o[key] = &u
}

// get returns an object that must exist.
func (o objects) get(t testing.TB, key string) *unstructured.Unstructured {
	t.Helper()
	if o[key] == nil {
		t.Fatalf("no %s among %v", key, slices.Sorted(maps.Keys(o)))
	}
	return o[key]
}

// kustomize renders a directory.
func kustomize(t testing.TB, dir string) objects {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	o := objects{}
	for _, r := range all.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		o.add(t, text)
	}
	return o
}

// helm renders the chart into namespace kube-system.
func helm(t testing.TB, values string) objects {
	t.Helper()
	files, err := helmFiles(t, values)
	if err != nil {
		t.Fatal(err)
	}
	o := objects{}
	for name, text := range files {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, document := range strings.Split(text, "\n---\n") {
			o.add(t, []byte(document))
		}
	}
	return o
}

func helmFiles(t testing.TB, values string) (map[string]string, error) {
	t.Helper()
	chart, err := loader.LoadDir(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := chart.Validate(); err != nil {
		t.Fatal(err)
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	release := chartutil.ReleaseOptions{Name: "slipstream", Namespace: "kube-system", IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(chart, all)
}

// documents are the YAML documents of a text, by kind.
func documents(t testing.TB, text string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, part := range strings.Split("\n"+text, "\n---\n") {
		var d map[string]any
		if err := yaml.UnmarshalStrict([]byte(part), &d); err != nil {
			t.Fatalf("%v in\n%s", err, part)
		}
		if len(d) > 0 {
			all[fmt.Sprint(d["kind"])] = d
		}
	}
	return all
}
