// SPDX-License-Identifier: Apache-2.0

package expression

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPods(t *testing.T) {
	all := []*corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "voip", Name: "bare"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sip-1", Labels: map[string]string{"app": "sip"}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"shaped": "yes"}}},
	}
	for expression, want := range map[string]string{
		`pod.namespace == "voip" || pod.labels["app"] == "sip"`: "bare sip-1",
		`pod.labels["app"] == "sip" || pod.namespace == "voip"`: "bare sip-1",
		`pod.labels["app"] != "sip"`:                            "web-1",
		`!("app" in pod.labels)`:                                "bare",
		`pod.name.startsWith("web-")`:                           "web-1",
		`"shaped" in pod.annotations`:                           "web-1",
		`true`:                                                  "bare sip-1 web-1",
	} {
		selects, err := Pods(expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		var got []string
		for _, p := range all {
			if selects(p) {
				got = append(got, p.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s selects %v, want %s", expression, got, want)
		}
	}
	if selects, err := Pods(" "); selects != nil || err != nil {
		t.Errorf("an empty expression selects, %v", err)
	}
}

func TestPodErrors(t *testing.T) {
	for expression, want := range map[string]string{
		`pod.label["app"] == "sip"`: `pod expression "pod.label[\"app\"] == \"sip\"": column 4: undefined field 'label'`,
		`pod.labels["app"]`:         `pod expression "pod.labels[\"app\"]": is of type string, not bool`,
		`source.name == "x"`:        `pod expression "source.name == \"x\"": column 1: undeclared reference to 'source' (in container '')`,
	} {
		if _, err := Pods(expression); fmt.Sprint(err) != want {
			t.Errorf("error\n%v, want\n%s", err, want)
		}
	}
}
