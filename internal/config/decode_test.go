// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	componentbase "k8s.io/component-base/config/v1alpha1"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write what comes out to testdata/files/*.golden; read it before you commit")

// TestFiles compares decoded files, with all defaults and notes, with golden files.
func TestFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/files/*.[yj]*")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, notes, err := Load(file)
			if err != nil {
				t.Fatal(err)
			}
			if errs := c.Validate(); len(errs) > 0 {
				t.Errorf("it is not valid: %v", errs)
			}
			var got bytes.Buffer
			for _, n := range append(notes, c.Notes()...) {
				got.WriteString("# " + n.String() + "\n")
			}
			data, err := c.YAML()
			if err != nil {
				t.Fatal(err)
			}
			got.Write(data)
			golden := strings.TrimSuffix(file, filepath.Ext(file)) + ".golden"
			if *rewrite {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil || !bytes.Equal(want, got.Bytes()) {
				t.Errorf("want (%v):\n%s\ngot:\n%s", err, want, got.Bytes())
			}
			again, notes, err := Decode(data)
			if err != nil {
				t.Fatalf("what is written cannot be read: %v", err)
			}
			if back, err := again.YAML(); err != nil || !bytes.Equal(back, data) {
				t.Errorf("what is written (%v) says something else when it is read:\n%s", err, back)
			}
			for _, n := range notes {
				if n.Verbosity == 0 && !strings.Contains(got.String(), "# "+n.String()) {
					t.Errorf("a new note: %v", n)
				}
			}
		})
	}
}

// TestKubeadm checks that the file is exactly what kubeadm 1.37 writes: all fields of the type,
// of which it sets a few.
func TestKubeadm(t *testing.T) {
	k := kubeproxy.KubeProxyConfiguration{
		BindAddress:      "0.0.0.0",
		ClusterCIDR:      "10.244.0.0/16",
		Mode:             "iptables",
		ClientConnection: componentbase.ClientConnectionConfiguration{Kubeconfig: "/var/lib/kube-proxy/kubeconfig.conf"},
	}
	k.APIVersion, k.Kind = "kubeproxy.config.k8s.io/v1alpha1", "KubeProxyConfiguration"
	want, err := yaml.Marshal(&k)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("testdata/files/kubeadm.yaml")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("want (%v):\n%s", err, want)
	}
}

// TestDefaults checks that an empty file and no flags give the same configuration.
func TestDefaults(t *testing.T) {
	file, _, err := Decode([]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n"))
	if err != nil {
		t.Fatal(err)
	}
	flags := New()
	flags.KubeProxy.Mode = NFTables
	flags.Complete()
	want, err := file.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := flags.YAML(); err != nil || !bytes.Equal(got, want) {
		t.Errorf("(%v)\n%s\nwant\n%s", err, got, want)
	}
}

const (
	kubeProxyDoc  = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	slipstreamDoc = "apiVersion: slipstream.config/v1beta1\nkind: SlipstreamConfiguration\n"
)

// TestDecodeErrors checks that all errors are reported together.
func TestDecodeErrors(t *testing.T) {
	for text, wants := range map[string][]string{
		"":                              {"it contains no configuration"},
		"---\n# nothing\n--- \n...\n":   {"it contains no configuration"},
		"kind: KubeProxyConfiguration":  {"document 1: apiVersion: is missing"},
		"apiVersion: v1":                {"document 1: kind: is missing"},
		"[]":                            {"document 1: "},
		"a: b: c":                       {"document 1: "},
		"apiVersion: v1\nkind: Service": {"document 1: Service of v1 is not supported"},
		"apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration":          {"KubeProxyConfiguration of kubeproxy.config.k8s.io/v1beta1 is not supported"},
		kubeProxyDoc + "oomScoreAdj: high":                                                   {"oomScoreAdj"},
		kubeProxyDoc + "---\n" + kubeProxyDoc:                                                {"document 2: there is more than one KubeProxyConfiguration"},
		slipstreamDoc + "fastPath: {treshold: 3}\nminsyncperiod: 1s\n":                       {`document 1: `, `unknown field "fastPath.treshold"`, `unknown field "minsyncperiod"`},
		slipstreamDoc + "checkPeriod: 1s\ncheckPeriod: 2s\n":                                 {"checkPeriod", "already set"},
		slipstreamDoc + "checkPeriod: often\n---\n" + kubeProxyDoc + "configSyncPeriod: now": {"document 1: ", "often", "document 2: ", "now"},
		slipstreamDoc + "fastPath: {hardwareOffload: [auto]}":                                {"document 1"},
	} {
		c, _, err := Decode([]byte(text))
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, error %v", text, c, err)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v; want %s", text, err, want)
			}
		}
	}
	if _, _, err := Load("testdata/none.yaml"); err == nil || !strings.Contains(err.Error(), "testdata/none.yaml") {
		t.Errorf("a missing file: %v", err)
	}
}

// FuzzDecode checks that a configuration that was decoded and written can be decoded again.
func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/files/*.[yj]*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("--- {kind: SlipstreamConfiguration, apiVersion: slipstream.config/v1beta1}\n---\n%YAML 1.1\n...\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<14 {
			t.Skip()
		}
		c, _, err := Decode(data)
		if err != nil {
			return
		}
		c.Validate()
		text, err := c.YAML()
		if err != nil {
			return // a time that has no text, for example
		}
		again, _, err := Decode(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if back, err := again.YAML(); err != nil || !bytes.Equal(back, text) {
			t.Errorf("%v\n%s\nis written, and read as\n%s", err, text, back)
		}
	})
}

// TestFormerVersion checks that a document of v1alpha1 means what it means as v1beta1, with every field of the type and
// with none, that it is written as v1beta1, and that only the former version has a note.
func TestFormerVersion(t *testing.T) {
	var all SlipstreamConfiguration
	setAll(t, reflect.ValueOf(&all).Elem())
	all.Kind = SlipstreamKind
	for _, c := range []SlipstreamConfiguration{all, {TypeMeta: metav1.TypeMeta{Kind: SlipstreamKind}}} {
		var written [][]byte
		for version, deprecated := range map[string]bool{"v1alpha1": true, "v1beta1": false} {
			c.APIVersion = "slipstream.config/" + version
			text, err := yaml.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			got, notes, err := Decode([]byte(kubeProxyDoc + "mode: nftables\n---\n" + string(text)))
			if err != nil {
				t.Fatal(err)
			}
			if noted := len(notes) == 1 && strings.Contains(notes[0].String(), "apiVersion: slipstream.config/v1alpha1 is deprecated"); noted != deprecated || !noted && len(notes) > 0 {
				t.Errorf("%s: notes %v", version, notes)
			}
			c.APIVersion = "slipstream.config/v1beta1"
			if c.Manifests != "" && !reflect.DeepEqual(got.Slipstream, c) {
				t.Errorf("%s: read as %+v, want %+v", version, got.Slipstream, c)
			}
			out, err := got.YAML()
			if err != nil || !bytes.Contains(out, []byte("\napiVersion: slipstream.config/v1beta1\n")) {
				t.Errorf("%s is written (%v) as\n%s", version, err, out)
			}
			written = append(written, out)
		}
		if !bytes.Equal(written[0], written[1]) {
			t.Errorf("the versions differ:\n%s\n%s", written[0], written[1])
		}
	}
}

// setAll sets all fields to values that are no defaults.
func setAll(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			setAll(t, field)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		setAll(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		setAll(t, v.Index(0))
	case reflect.String:
		v.SetString("other")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	default:
		t.Fatalf("a field is of the kind %v", v.Kind())
	}
}
